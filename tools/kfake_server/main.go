// Kfake_server serves kfake, the Kafka broker of franz-go, on free loopback ports for tests.
//
//	kfake_server [-brokers N] [-version KAFKA]
//
// It prints the bootstrap servers, and then responds to each line on stdin with one line: "ok", or "error: " and the
// reason. It ends with stdin.
//
//	fail API ERROR COUNT               respond to the next COUNT requests of an API (by key) with an error (by code)
//	move-leader TOPIC PARTITION NODE   let a broker lead a partition
//	move-coordinators                  let other brokers coordinate transactions
//
// A request that is failed has no effect, except a produce request with REQUEST_TIMED_OUT or
// NOT_ENOUGH_REPLICAS_AFTER_APPEND: its records are stored.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// parseNumbers returns the integers in the words.
func parseNumbers(words []string) ([]int, error) {
	numbers := make([]int, len(words))
	for index, word := range words {
		number, err := strconv.Atoi(word)
		if err != nil {
			return nil, err
		}
		numbers[index] = number
	}
	return numbers, nil
}

// runCommand changes the cluster as a line of stdin requests.
func runCommand(cluster *kfake.Cluster, words []string) error {
	switch {
	case len(words) == 4 && words[0] == "fail":
		numbers, err := parseNumbers(words[1:])
		if err != nil {
			return err
		}
		fault := kfake.Fault{Keys: []kmsg.Key{kmsg.Key(numbers[0])}, Count: numbers[2]}
		if fault.Err = kerr.TypedErrorForCode(int16(numbers[1])); fault.Err == nil {
			return fmt.Errorf("unknown error code %d", numbers[1])
		}
		cluster.Fault(fault)
		return nil
	case len(words) == 4 && words[0] == "move-leader":
		numbers, err := parseNumbers(words[2:])
		if err != nil {
			return err
		}
		return cluster.MoveTopicPartition(words[1], int32(numbers[0]), int32(numbers[1]))
	case len(words) == 1 && words[0] == "move-coordinators":
		cluster.RehashCoordinators()
		return nil
	}
	return fmt.Errorf("unknown command %q", strings.Join(words, " "))
}

func main() {
	log.SetFlags(0)
	brokers := flag.Int("brokers", 3, "the number of brokers")
	version := flag.String("version", "", "the version of Kafka whose requests the brokers accept, such as 2.8")
	flag.Parse()
	options := []kfake.Opt{kfake.NumBrokers(*brokers)}
	if *version != "" {
		versions := kversion.FromString(*version)
		if versions == nil {
			log.Fatalf("unknown version %q of Kafka", *version)
		}
		options = append(options, kfake.MaxVersions(versions))
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	fmt.Println(strings.Join(cluster.ListenAddrs(), ","))
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		if err := runCommand(cluster, strings.Fields(input.Text())); err != nil {
			fmt.Println("error:", err)
		} else {
			fmt.Println("ok")
		}
	}
}
