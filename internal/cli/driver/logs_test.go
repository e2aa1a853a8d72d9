package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/hosting/supervise"
)

// TestTail: the last lines are found, however long they are.
func TestTail(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	for _, c := range []struct {
		text  string
		lines int
		want  string
	}{
		{"", 1, ""},
		{"a\nb\nc\n", 0, ""},
		{"a\nb\nc\n", 1, "c\n"},
		{"a\nb\nc\n", 2, "b\nc\n"},
		{"a\nb\nc\n", 3, "a\nb\nc\n"},
		{"a\nb\nc\n", 9, "a\nb\nc\n"},
		{"a\nb\nc", 1, "c"},
		{"a\n\n\n", 2, "\n\n"},
		{"\n", 1, "\n"},
		{"a\n" + long + "\nb\n", 2, long + "\nb\n"},
		{"a\n" + long + "\nb\n", 3, "a\n" + long + "\nb\n"},
		{long + long + "\n" + long, 1, long},
	} {
		s := newStand(t)
		s.log(t, "p", c.text)
		if err := s.logs(t.Context(), "p", logFlags{tail: c.lines}); err != nil || s.out.String() != c.want {
			t.Errorf("%d of %.20q: %.20q, %v", c.lines, c.text, s.out, err)
		}
	}
}

func TestNoLog(t *testing.T) {
	s := newStand(t)
	if err := s.logs(t.Context(), "p", logFlags{tail: -1}); err == nil ||
		!strings.Contains(err.Error(), "p has printed nothing yet: see 'volplane driver list'") {
		t.Error(err)
	}
	s.log(t, "q", "secret")
	if err := os.Symlink(supervise.OutputPath(s.state, "q"), supervise.OutputPath(s.state, "p")); err != nil {
		t.Fatal(err)
	}
	if err := s.logs(t.Context(), "p", logFlags{tail: -1}); err == nil || s.out.Len() > 0 {
		t.Errorf("a link is followed: %s, %v", s.out, err)
	}
}

// TestFollow: what is printed from now on is shown, also after the log was cut to nothing.
func TestFollow(t *testing.T) {
	s := newStand(t)
	read, write := io.Pipe()
	s.hostDrivers.out = write
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		err := s.logs(ctx, "p", logFlags{follow: true, tail: 1})
		ended <- errors.Join(err, write.CloseWithError(err))
	}()
	next := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(read, got); err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	s.log(t, "p", "one\n")
	next("one\n")
	f, err := os.OpenFile(supervise.OutputPath(s.state, "p"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprint(f, "two\n")
	next("two\n")
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(f, "3\n")
	next("3\n")
	stop()
	if err := <-ended; err != nil {
		t.Errorf("interrupted: %v", err)
	}
}

// TestLastLogLines: what an error shows of a log is short and has nothing that a terminal obeys.
func TestLastLogLines(t *testing.T) {
	s := newStand(t)
	s.log(t, "p", "first\nsec\tond\x1b]0;title\x07\n\xff"+strings.Repeat("y", 1000)+"\n")
	got := lastLogLines(s.state, "p", 2)
	if want := []string{"sec ond ]0;title", "?" + strings.Repeat("y", 399) + "..."}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	s.log(t, "q", "\n\n")
	for _, name := range []string{"q", "absent"} {
		if got := lastLogLines(s.state, name, 2); got != nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}
