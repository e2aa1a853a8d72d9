package sidecar

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// inverted is a flag whose false is another name's true.
type inverted struct{ b *bool }

func (v inverted) Set(text string) error {
	b, err := strconv.ParseBool(text)
	*v.b = !b
	return err
}

func (v inverted) String() string   { return strconv.FormatBool(v.b == nil || !*v.b) }
func (v inverted) Type() string     { return "bool" }
func (v inverted) IsBoolFlag() bool { return true }

// cut is the length to which the UID in a name is cut: upstream's -1 means all of it, as 0 does here.
type cut struct{ n *int }

func (v cut) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < -1 {
		return fmt.Errorf("%q is not a length: give a number of characters, or -1 for all of them", text)
	}
	*v.n = max(n, 0)
	return nil
}

func (v cut) String() string {
	if v.n == nil || *v.n == 0 {
		return "-1"
	}
	return strconv.Itoa(*v.n)
}
func (v cut) Type() string { return "int" }

// workerCount is a number of workers, at least one.
type workerCount struct{ n *int }

func (v workerCount) Set(text string) error {
	n, err := strconv.ParseUint(text, 0, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("%q is not a number of workers: give one between 1 and 65535", text)
	}
	*v.n = int(n)
	return nil
}

func (v workerCount) String() string {
	if v.n == nil {
		return "0"
	}
	return strconv.Itoa(*v.n)
}
func (v workerCount) Type() string { return "int" }

// givenCount is a number that distinguishes 0 from an absent value.
type givenCount struct{ n **int32 }

func (v givenCount) Set(text string) error {
	n, err := strconv.ParseInt(text, 0, 32)
	if err != nil {
		return fmt.Errorf("%q is not a number of at most 32 bits", text)
	}
	given := int32(n)
	*v.n = &given
	return nil
}

func (v givenCount) String() string {
	if v.n == nil || *v.n == nil {
		return ""
	}
	return strconv.Itoa(int(**v.n))
}
func (v givenCount) Type() string { return "int" }

// labels are written as KEY:VALUE, separated by commas.
type labels struct{ m *map[string]string }

func (v labels) Set(text string) error {
	out := map[string]string{}
	for _, pair := range strings.Split(text, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		key, value, found := strings.Cut(pair, ":")
		if !found || strings.TrimSpace(key) == "" {
			return fmt.Errorf("%q is not a label: write KEY:VALUE, separated by commas", pair)
		}
		out[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	*v.m = out
	return nil
}

func (v labels) String() string {
	if v.m == nil {
		return ""
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(*v.m)) {
		out = append(out, key+":"+(*v.m)[key])
	}
	return strings.Join(out, ",")
}
func (v labels) Type() string { return "labels" }

var _ = []pflag.Value{inverted{}, cut{}, workerCount{}, givenCount{}, labels{}, &Gates{}}
