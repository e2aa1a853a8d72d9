package up

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"volplane.dev/volplane/internal/process/sdnotify"
)

// TestSlowStartTells: a quick start reports nothing; a slow one reports each step, and repeats one that lasts.
func TestSlowStartTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		s := begin(t.Context(), &out)
		<-time.After(patience - time.Millisecond)
		if took := s.end(); out.String() != "" || took != patience-time.Millisecond {
			t.Errorf("after %s: %q", took, out.String())
		}
		s = begin(t.Context(), &out)
		<-time.After(patience + time.Millisecond)
		s.does("starting etcd")
		<-time.After(remind + patience)
		s.end()
		const want = "starting,   2 s: opening the data directory\nstarting,   2 s: starting etcd\n" +
			"starting,  12 s: starting etcd\n"
		if got := strings.ReplaceAll(out.String(), "  3 s", "  2 s"); strings.Replace(got, " 13 s", " 12 s", 1) != want {
			t.Errorf("%s\nwant\n%s", out.String(), want)
		}
	})
}

// TestReady: services that use volumes start when the volumes of the Pods are mounted again, and do not wait forever
// for a node agent that cannot begin.
func TestReady(t *testing.T) {
	for _, c := range []struct{ controllers, mounted, want time.Duration }{
		{time.Second, 5 * time.Second, 5 * time.Second},
		{5 * time.Second, time.Second, 5 * time.Second},
		{time.Second, time.Hour, time.Second + mountedLimit},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			l := &liveness{controllers: make(chan struct{}), mounted: make(chan struct{})}
			begin, took := time.Now(), time.Duration(0)
			time.AfterFunc(c.controllers, func() { close(l.controllers) })
			time.AfterFunc(c.mounted, func() { l.restored(ctx, nil) })
			part := l.part(sdnotify.New(), func() { took = time.Since(begin) }, slog.New(slog.DiscardHandler))
			time.AfterFunc(10*time.Minute, cancel)
			if err := part.Run(ctx); err != nil || took != c.want {
				t.Errorf("%+v: ready after %v, %v", c, took, err)
			}
		})
	}
}
