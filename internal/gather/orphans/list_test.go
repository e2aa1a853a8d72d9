package orphans

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi/csitest"
)

// page is one answer to ListVolumes.
func page(next string, ids ...string) csitest.Action {
	r := &csipb.ListVolumesResponse{NextToken: next}
	for _, id := range ids {
		r.Entries = append(r.Entries, &csipb.ListVolumesResponse_Entry{Volume: &csipb.Volume{VolumeId: id}})
	}
	return csitest.Action{Answer: r}
}

// many returns n ids.
func many(n int, page string) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(page, "-", i)
	}
	return ids
}

// TestList: a list is read to its end, however many pages it has; a list that has no end
// or is not plausible is reported, and no part of it is used.
func TestList(t *testing.T) {
	calls := 0
	for name, c := range map[string]struct {
		answer func(n int, token string) csitest.Action
		want   int
		err    error
		says   string
	}{
		"one page": {answer: func(int, string) csitest.Action { return page("", "a", "b") }, want: 2},
		"nothing":  {answer: func(int, string) csitest.Action { return page("") }},
		"three pages": {answer: func(n int, _ string) csitest.Action {
			return page(map[int]string{1: "x", 2: "y"}[n], fmt.Sprint("v", n))
		}, want: 3},
		"one token": {answer: func(int, string) csitest.Action { return page("again", "a") }, err: ErrEndless},
		"a circle":  {answer: func(n int, _ string) csitest.Action { return page(fmt.Sprint(n%3), "a") }, err: ErrEndless},
		"no end":    {answer: func(n int, _ string) csitest.Action { return page(fmt.Sprint(n)) }, err: ErrEndless},
		"too many": {
			answer: func(n int, _ string) csitest.Action { return page(fmt.Sprint(n), many(20_000, fmt.Sprint(n))...) },
			err:    ErrEndless,
		},
		"a huge id": {
			answer: func(int, string) csitest.Action { return page("", strings.Repeat("a", 100_000)) }, says: "volume_id",
		},
		"a line in it": {answer: func(int, string) csitest.Action { return page("", "a\nb") }, says: "control character"},
		"an error": {
			answer: func(int, string) csitest.Action {
				return csitest.Action{Err: status.Error(codes.Aborted, "start anew")}
			}, says: "Aborted: start anew",
		},
		"an error on the way": {answer: func(n int, _ string) csitest.Action {
			if n > 1 {
				return csitest.Action{Err: status.Error(codes.Internal, "boom")}
			}
			return page("x", "a")
		}, says: "Internal: boom"},
	} {
		t.Run(name, func(t *testing.T) {
			d := csitest.Start(t, csitest.Full())
			d.OnCall("ListVolumes", func(n int, req any) csitest.Action {
				calls = n
				return c.answer(n, req.(*csipb.ListVolumesRequest).GetStartingToken())
			})
			conn, err := dial(t.Context(), d.Socket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			all, err := list(t.Context(), conn)
			if bad := c.err != nil || c.says != ""; bad != (err != nil) || len(all) != c.want ||
				c.err != nil && !errors.Is(err, c.err) {
				t.Errorf("%d volumes, %v", len(all), err)
			}
			if err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q in it", err, c.says)
			}
			if calls > maxPages {
				t.Errorf("%d pages were read", calls)
			}
		})
	}
}

// TestCannotList: a driver without the capability is distinguished from one that fails.
func TestCannotList(t *testing.T) {
	config := csitest.Full()
	config.Controller.ListVolumes = false
	if _, err := dial(t.Context(), csitest.Start(t, config).Socket); !errors.Is(err, ErrCannotList) {
		t.Errorf("%v", err)
	}
}

// TestSocket: of several drivers that of the name is taken, and who is missing is
// named.
func TestSocket(t *testing.T) {
	var sockets []string
	for _, name := range []string{"a.example.com", "b.example.com"} {
		config := csitest.Full()
		config.Name = name
		sockets = append(sockets, csitest.Start(t, config).Socket)
	}
	s := &Search{}
	if got, err := s.Socket(t.Context(), sockets, "b.example.com"); err != nil || got != sockets[1] {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := s.Socket(t.Context(), sockets, "c.example.com"); !errors.Is(err, ErrNoDriver) ||
		!strings.Contains(err.Error(), "c.example.com") {
		t.Errorf("%v", err)
	}
}
