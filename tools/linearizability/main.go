// Linearizability checks histories of the decision log with Porcupine.
//
//	linearizability FILE...
//
// The files have JSON lines of tests/exactly_once/log_history.py. For each history and prefix, there must be an order of
// the operations in which each takes effect between its invocation and its response, so that
//
//   - a read returns the newest entry
//   - a claim or a write takes effect only while the entry that it follows is the newest
//
// An operation without a response may take effect at any time after its invocation, or never. The exit status is 1 if a
// history has no such order.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"slices"

	"github.com/anishathalye/porcupine"
)

// line is an invocation, or a response if it has an outcome.
type line struct {
	History   string
	Prefix    string
	Operation string
	Time      int64
	Client    string
	Kind      string
	Expected  string
	Value     string
	Outcome   string
}

// input is a read, or the replacement of the entry `expected` by `value`.
type input struct {
	client, kind, expected, value string
}

// output is the response; `value` is the entry that a read returned.
type output struct {
	known bool
	value string
}

type key struct{ history, prefix string }

// model is the newest entry of one prefix; "" if it has none.
var model = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, in, out any) (bool, any) {
		operation, response := in.(input), out.(output)
		switch {
		case operation.kind == "read":
			return !response.known || response.value == state, state
		case state == operation.expected:
			return true, operation.value
		default: // An operation without a response takes no effect here.
			return !response.known, state
		}
	},
}

// readHistories adds the operations of a file to the histories, in the order of their invocations.
func readHistories(file io.Reader, histories map[key][]porcupine.Operation) error {
	type pending struct {
		key   key
		index int
	}
	pendingByID := map[string]pending{}
	failedIndices := map[key]map[int]bool{}
	reader := bufio.NewScanner(file)
	reader.Buffer(nil, 1<<20)
	for number := 1; reader.Scan(); number++ {
		var event line
		if err := json.Unmarshal(reader.Bytes(), &event); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		id := key{event.History, event.Prefix}
		switch {
		case event.Outcome == "" && (event.Kind == "read" || event.Kind == "claim" || event.Kind == "write"):
			pendingByID[event.Operation] = pending{id, len(histories[id])}
			histories[id] = append(histories[id], porcupine.Operation{
				Input:  input{event.Client, event.Kind, event.Expected, event.Value},
				Call:   event.Time,
				Output: output{},
				Return: math.MaxInt64,
			})
		case event.Outcome == "ok" || event.Outcome == "failed":
			invocation, exists := pendingByID[event.Operation]
			if !exists {
				return fmt.Errorf("line %d: operation %s was not invoked", number, event.Operation)
			}
			operation := &histories[invocation.key][invocation.index]
			operation.Return = event.Time
			operation.Output = output{true, event.Value}
			if event.Outcome == "failed" {
				if failedIndices[invocation.key] == nil {
					failedIndices[invocation.key] = map[int]bool{}
				}
				failedIndices[invocation.key][invocation.index] = true
			}
		default:
			return fmt.Errorf("line %d: unknown kind %q or outcome %q", number, event.Kind, event.Outcome)
		}
	}
	for id, operations := range histories { // A failed operation takes no effect.
		effective := []porcupine.Operation{}
		for index, operation := range operations {
			if !failedIndices[id][index] {
				effective = append(effective, operation)
			}
		}
		histories[id] = effective
	}
	return reader.Err()
}

// removeUnobserved removes operations without a response that no other operation shows to have taken effect: reads, and
// writes of an entry that was never read or followed. They do not change the result: such a write takes effect after all
// other operations, or not at all. With them, the search takes a time that is exponential in their number.
func removeUnobserved(operations []porcupine.Operation) []porcupine.Operation {
	for {
		observed := map[string]bool{}
		for _, operation := range operations {
			in, out := operation.Input.(input), operation.Output.(output)
			if in.kind == "read" {
				observed[out.value] = observed[out.value] || out.known
			} else {
				observed[in.expected] = true
			}
		}
		remaining := []porcupine.Operation{}
		for _, operation := range operations {
			in, out := operation.Input.(input), operation.Output.(output)
			if out.known || (in.kind != "read" && observed[in.value]) {
				remaining = append(remaining, operation)
			}
		}
		if len(remaining) == len(operations) {
			return remaining
		}
		operations = remaining
	}
}

// printHistory prints the operations, and marks those that are not in the longest order that Porcupine found.
func printHistory(id key, operations []porcupine.Operation, info porcupine.LinearizationInfo) {
	fmt.Printf("history %s, prefix %s is not linearizable:\n", id.history, id.prefix)
	var longest []porcupine.Operation
	for _, orders := range info.PartialLinearizationsOperations() {
		for _, order := range orders {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	for _, operation := range operations {
		in, out := operation.Input.(input), operation.Output.(output)
		mark, end, text := "?", "no response", fmt.Sprintf("%s [%s] after [%s]", in.kind, in.value, in.expected)
		if in.kind == "read" {
			text = fmt.Sprintf("read [%s]", out.value)
		}
		if out.known {
			end = fmt.Sprint(operation.Return)
		}
		if slices.ContainsFunc(longest, func(other porcupine.Operation) bool {
			return other.Call == operation.Call && other.Input == operation.Input
		}) {
			mark = " "
		}
		fmt.Printf("%s %d to %s, %s: %s\n", mark, operation.Call, end, in.client, text)
	}
}

func main() {
	log.SetFlags(0)
	histories := map[key][]porcupine.Operation{}
	for _, path := range os.Args[1:] {
		file, err := os.Open(path)
		if err != nil {
			log.Fatal(err)
		}
		if err := readHistories(file, histories); err != nil {
			log.Fatalf("%s: %v", path, err)
		}
		file.Close()
	}
	count, unknown, failures := 0, 0, 0
	for id, operations := range histories {
		count += len(operations)
		for _, operation := range operations {
			if !operation.Output.(output).known {
				unknown++
			}
		}
		result, info := porcupine.CheckOperationsVerbose(model, removeUnobserved(operations), 0)
		if result != porcupine.Ok {
			failures++
			printHistory(id, operations, info)
		}
	}
	fmt.Printf("%d histories, %d operations (%d without a response): %d not linearizable\n",
		len(histories), count, unknown, failures)
	if failures > 0 || len(histories) == 0 {
		os.Exit(1)
	}
}
