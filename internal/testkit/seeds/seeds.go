// Package seeds determines how much random tests play, and from which seed on. Each day has seeds of its own,
// so that runs of several days see more than one run could.
package seeds

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// perDay is how many seeds a day has.
const perDay = 100_000

// First returns the first seed to play: SEED, or the first one of the day.
func First(t testing.TB) uint64 {
	t.Helper()
	day, err := strconv.ParseUint(time.Now().UTC().Format("20060102"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return number(t, "SEED", day*perDay)
}

// Count returns how many seeds, kills or rounds a test plays whose share of `make test` is few of them: few, or
// TIMES times as many in `make proof`.
func Count(t testing.TB, few int) int {
	t.Helper()
	return few * int(number(t, "TIMES", 1)) //nolint:gosec // it is a small number
}

// parts is the number of parts in which Part divides cases.
const parts = 5

// Part returns which cases are played of a table that is too long for `make test`, by their numbers: another part
// on each of five days, or all with TIMES=5 or more.
func Part(t testing.TB) func(number int) bool {
	t.Helper()
	seed := First(t)
	part, all := int((seed/perDay+seed%perDay)%parts), Count(t, 1) >= parts //nolint:gosec // it is less than parts
	return func(number int) bool { return all || number%parts == part }
}

// number returns the number in an environment variable.
func number(t testing.TB, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s is not a number: %v", name, err)
	}
	return n
}
