package volume

import (
	"slices"
	"testing"
)

func TestWithout(t *testing.T) {
	t.Parallel()
	all := []string{"a", "b", "c", "b"}
	for _, c := range []struct{ some, want []string }{
		{nil, []string{"a", "b", "c", "b"}},
		{[]string{"d"}, []string{"a", "b", "c", "b"}},
		{[]string{"b"}, []string{"a", "c"}},
		{[]string{"a", "b"}, []string{"c"}},
	} {
		if got := Without(all, c.some...); !slices.Equal(got, c.want) {
			t.Errorf("without %v: %v, want %v", c.some, got, c.want)
		}
	}
	if got := Without(all, all...); got != nil {
		t.Errorf("without all: %#v", got)
	}
	if !slices.Equal(all, []string{"a", "b", "c", "b"}) {
		t.Errorf("the list itself is changed: %v", all)
	}
}
