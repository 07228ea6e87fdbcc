// Verifies receipts without pykafka: go run . REPORT.jsonl HOST:PORT. docs/receipts.md defines the hash.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type receipt struct {
	Topic       string `json:"topic"`
	Partition   int32  `json:"partition"`
	FirstOffset int64  `json:"first_offset"`
	LastOffset  int64  `json:"last_offset"`
	Rows        int64  `json:"rows"`
	Digest      string `json:"digest"`
	// Rows that the broker stored without returning their offsets. They may lie outside of the range.
	RowsWithoutOffset int64 `json:"rows_without_offset"`
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

func constant(i uint64) uint64 { return mix(i*0x9E3779B97F4A7C15) | 1 }

func hash(r *kgo.Record) uint64 {
	fields := [][]byte{r.Key, r.Value}
	for _, h := range r.Headers {
		fields = append(fields, []byte(h.Key), h.Value)
	}
	sum, fieldFactor := constant(36), uint64(1)
	for _, field := range fields {
		blockFactor := fieldFactor
		if field != nil {
			sum += fieldFactor * constant(35) * uint64(len(field)+1)
		}
		for at := 0; at < len(field); at += 8 {
			if at > 0 && at%256 == 0 {
				blockFactor *= constant(33)
			}
			var padded [8]byte
			copy(padded[:], field[at:])
			word := binary.LittleEndian.Uint64(padded[:])
			sum += blockFactor * constant(uint64(1+at/8%32)) * (word ^ word>>33)
		}
		fieldFactor *= constant(34)
	}
	return mix(sum)
}

func verify(want receipt, seed string) bool {
	start := map[string]map[int32]kgo.Offset{want.Topic: {want.Partition: kgo.NewOffset().At(want.FirstOffset)}}
	client, err := kgo.NewClient(kgo.SeedBrokers(seed), kgo.ConsumePartitions(start),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		panic(err)
	}
	defer client.Close()
	var high, low, carry uint64
	rows, next := int64(0), want.FirstOffset
	for next <= want.LastOffset {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		fetched := client.PollFetches(ctx).Records()
		cancel()
		if len(fetched) == 0 {
			break // the end of the range is missing
		}
		for _, record := range fetched {
			next = record.Offset + 1
			if record.Offset <= want.LastOffset {
				low, carry = bits.Add64(low, hash(record), 0)
				high += carry
				rows++
			}
		}
	}
	digest := fmt.Sprintf("%016x%016x", high, low)
	fmt.Printf("%s %d: written %d %s, found %d %s\n", want.Topic, want.Partition, want.Rows, want.Digest, rows, digest)
	intact := rows == want.Rows && digest == want.Digest
	if !intact && want.RowsWithoutOffset > 0 {
		fmt.Printf("%s %d: unknown, %d rows have no offsets\n", want.Topic, want.Partition, want.RowsWithoutOffset)
	}
	return intact
}

func main() {
	file, err := os.Open(os.Args[1])
	if err != nil {
		panic(err)
	}
	lines, status := bufio.NewScanner(file), 0
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var report struct{ Partitions []receipt }
		if err := json.Unmarshal(lines.Bytes(), &report); err != nil {
			panic(err)
		}
		for _, want := range report.Partitions {
			if !verify(want, os.Args[2]) {
				status = 1
			}
		}
	}
	os.Exit(status)
}
