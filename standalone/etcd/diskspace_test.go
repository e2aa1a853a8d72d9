package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"volplane.dev/volplane/standalone/etcd"
)

const (
	mib = 1 << 20
	// objectSize is the size of one of fill's writes.
	objectSize = mib / 2
)

func client(t *testing.T, s *etcd.Server) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func newDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// fill writes until etcd refuses it.
func fill(t *testing.T, c *clientv3.Client, key func(i int) string) (written int) {
	t.Helper()
	for i := range 1000 {
		_, err := c.Put(t.Context(), key(i), strings.Repeat("x", objectSize))
		if errors.Is(err, rpctypes.ErrNoSpace) {
			return i
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the quota does not hold")
	return 0
}

// comesTrue waits for what the keeper does in its turns.
func comesTrue(t *testing.T, what string, is func() bool) {
	t.Helper()
	limit := time.After(time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-limit:
			t.Fatalf("not in time: %s", what)
		case <-tick.C:
		}
	}
}

// TestQuota: a database that is full of old revisions makes room automatically; one that is full of objects accepts
// writes again when some are deleted, and starts in any case.
func TestQuota(t *testing.T) {
	const quota = 32 * mib
	o := etcd.Options{Dir: newDir(t), NoSync: true, Quota: quota}
	s, err := etcd.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, s)
	put := func(key string) func() bool {
		return func() bool {
			_, err := c.Put(t.Context(), key, "small")
			return err == nil
		}
	}
	full := func() bool {
		f, p := s.Room()
		return f.Alarm && p.RefuseNew && p.RefuseChanges
	}
	fill(t, c, func(int) string { return "/same" })
	comesTrue(t, "room after many writes of one object", put("/small"))
	comesTrue(t, "the file is small again", func() bool { f, _ := s.Room(); return f.Size < 8*mib && !f.Alarm })
	n := fill(t, c, func(i int) string { return fmt.Sprint("/object/", i) })
	comesTrue(t, "it is told", full)
	// etcd knows the size as of its last commit, so a fast writer gets far beyond the quota.
	const half = quota / 2 / objectSize
	for i := range n - half {
		if _, err := c.Delete(t.Context(), fmt.Sprint("/object/", i)); err != nil {
			t.Fatalf("deletion %d: %v", i, err)
		}
	}
	comesTrue(t, "room after deletions", put("/small"))
	fill(t, c, func(i int) string { return fmt.Sprint("/more/", i) })
	s.Stop()
	o.Quota = 0
	if s, err = etcd.Start(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	c = client(t, s)
	if !put("/small")() {
		t.Error("a start over the quota refuses writes")
	}
}

// small returns a directory on a disk of its own.
func small(t *testing.T, size string) string {
	t.Helper()
	dir := newDir(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestFullDisk: a writer that suddenly takes all of the disk does not end etcd, which has what it needs for a while; a
// slice of the reserve is released, and taken back when there is room.
func TestFullDisk(t *testing.T) {
	dir := small(t, "512m")
	reserve := filepath.Join(dir, "reserve")
	s, err := etcd.Start(t.Context(), etcd.Options{Dir: filepath.Join(dir, "etcd"), Reserve: reserve})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	held := func() int64 {
		info, err := os.Stat(reserve)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	comesTrue(t, "a reserve", func() bool { f, _ := s.Room(); return held() == 64*mib && f.Reserve == held() })
	whole := held()
	filler := filepath.Join(dir, "filler")
	gulp(t, filler)
	c := client(t, s)
	for i := range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := c.Put(ctx, fmt.Sprint("/object/", i), strings.Repeat("x", 100_000))
		cancel()
		if err != nil {
			t.Fatalf("write %d on a full disk: %v", i, err)
		}
	}
	comesTrue(t, "it is told", func() bool { _, p := s.Room(); return p.RefuseNew && !p.RefuseChanges })
	comesTrue(t, "a part of the reserve is given up", func() bool { return held() < whole })
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	comesTrue(t, "it is taken back", func() bool { _, p := s.Room(); return held() == whole && !p.RefuseNew })
	select {
	case err := <-s.Err():
		t.Error(err)
	default:
	}
}

// gulp takes all free space on the disk of a file, as fast as it can.
func gulp(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 16 * mib; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 16
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestEndOnFullDisk: when etcd cannot continue, it returns an error with the cause, and the process survives to report
// it.
func TestEndOnFullDisk(t *testing.T) {
	dir := small(t, "200m")
	s, err := etcd.Start(t.Context(), etcd.Options{Dir: filepath.Join(dir, "etcd")})
	if err != nil {
		t.Fatal(err)
	}
	gulp(t, filepath.Join(dir, "filler"))
	c := client(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := 0; ctx.Err() == nil && i < 1000; i++ {
		go func() { _, _ = c.Put(ctx, fmt.Sprint("/object/", i), strings.Repeat("x", mib)) }()
	}
	select {
	case err := <-s.Err():
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%v, want %v", err, unix.ENOSPC)
		}
	case <-ctx.Done():
		t.Error("it goes on without room")
	}
	cancel()
	begin := time.Now()
	s.Stop()
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("the end took %s", took)
	}
}
