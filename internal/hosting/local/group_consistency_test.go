package local

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
)

// ledger is a program that writes the numbers from 1 on, each to one volume and then to the other, and
// continues only when what it has written is on the disk.
type ledger struct {
	first, second *os.File
	stop          chan struct{}
	ended         chan error
	// at is the last number that both have.
	at chan uint32
}

func (w *poolDriver) newLedger(first, second *disk) *ledger {
	w.Helper()
	open := func(d *disk) *os.File {
		f, err := os.OpenFile(filepath.Join(d.target, "ledger"), os.O_CREATE|os.O_WRONLY, 0o600)
		w.ok(err)
		return f
	}
	l := &ledger{
		first: open(first), second: open(second), stop: make(chan struct{}), ended: make(chan error, 1),
		at: make(chan uint32),
	}
	go func() { l.ended <- l.write() }()
	return l
}

func (l *ledger) write() error {
	defer l.first.Close()
	defer l.second.Close()
	for n := uint32(1); ; n++ {
		for _, f := range []*os.File{l.first, l.second} {
			_, err := f.WriteAt(binary.BigEndian.AppendUint32(nil, n), int64(n-1)*4)
			if err := errors.Join(err, f.Sync()); err != nil {
				return err
			}
		}
		select {
		case <-l.stop:
			return nil
		case l.at <- n:
		default:
		}
	}
}

func (l *ledger) close() error {
	close(l.stop)
	return <-l.ended
}

// last returns the last number of a ledger, which has all up to that.
func (d *disk) last() uint32 {
	d.Helper()
	data, err := os.ReadFile(filepath.Join(d.target, "ledger"))
	d.ok(err)
	var want bytes.Buffer
	for n := range uint32(len(data) / 4) {
		want.Write(binary.BigEndian.AppendUint32(nil, n+1))
	}
	if !bytes.Equal(data, want.Bytes()) {
		d.Fatalf("a ledger of %d bytes has holes", len(data))
	}
	return uint32(len(data) / 4) //nolint:gosec // it is small
}

// restoredLast returns the last number in a volume that is made from a group's snapshot of a volume.
func (w *poolDriver) restoredLast(g *csipb.VolumeGroupSnapshot, of *disk) uint32 {
	w.Helper()
	i := slices.IndexFunc(g.GetSnapshots(), func(s *csipb.Snapshot) bool { return s.GetSourceVolumeId() == of.id })
	s := g.GetSnapshots()[i]
	d := w.create("restored", s.GetSizeBytes(), of.fsType, fromSnapshot(s.GetSnapshotId()))
	d.use()
	n := d.last()
	d.end()
	return n
}

// TestGroupIsOneMoment: of what a program writes to two volumes in turn, a group has all up to one moment: what the
// second volume has, the first one has, too, and at most one number more. Both go on afterwards.
func TestGroupIsOneMoment(t *testing.T) {
	t.Parallel()
	w := newPoolDriver(t)
	// There is so much to copy that the program would continue in the meantime.
	a, b := w.create("a", 128*mib, "ext4", nil), w.create("b", 128*mib, "ext4", nil)
	for _, d := range []*disk{a, b} {
		d.use()
		w.ok(os.WriteFile(filepath.Join(d.target, "much"), bytes.Repeat([]byte("data"), 20*mib), 0o600))
		d.rest()
	}
	for i, order := range [][2]*disk{{a, b}, {b, a}, {a, b}, {b, a}} {
		first, second := order[0], order[1]
		first.use()
		second.use()
		l := w.newLedger(first, second)
		for before := <-l.at; <-l.at < before+20; {
		}
		g, err := w.group(fmt.Sprint("g", i), a.id, b.id)
		w.ok(err)
		now := <-l.at
		for <-l.at < now+3 {
		}
		w.ok(l.close())
		n, m := w.restoredLast(g, first), w.restoredLast(g, second)
		if n != m && n != m+1 || m < 20 {
			t.Errorf("the first volume has the numbers up to %d, the second one up to %d", n, m)
		}
		for _, d := range order {
			w.ok(os.Remove(filepath.Join(d.target, "ledger")))
			d.rest()
		}
		w.ok(w.deleteGroup(g.GetGroupSnapshotId()))
	}
	w.ok(w.delete(a.id))
	w.ok(w.delete(b.id))
	w.empty()
}

// TestKilledInGroup kills drivers while a program writes to the volumes of a group that is taken. The next driver thaws
// them, and takes the group or finds it whole.
func TestKilledInGroup(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	p := run(t, dir, "node").serving("node")
	a, b := p.create("a", 32*mib, "ext4", nil), p.create("b", 32*mib, "ext4", nil)
	a.use()
	b.use()
	l := p.newLedger(a, b)
	kills := 0
	goesOn := func(*poolDriver) {
		for now := <-l.at; <-l.at < now+2; {
		}
	}
	for i := range 12 {
		name := fmt.Sprint("g", i)
		id := groups.idOf(name)
		p = p.killedIn(step{"group", func(w *poolDriver) error {
			_, err := w.group(name, a.id, b.id)
			return err
		}, goesOn}, &kills)
		g, err := p.getGroup(id)
		p.ok(err)
		if i%4 == 0 {
			if n, m := p.restoredLast(g, a), p.restoredLast(g, b); n != m && n != m+1 {
				t.Errorf("the first volume has the numbers up to %d, the second one up to %d", n, m)
			}
		}
		p = p.killedIn(step{"delete group", func(w *poolDriver) error { return w.deleteGroup(id) }, goesOn}, &kills)
	}
	p.ok(l.close())
	t.Logf("killed %d times before the answer", kills)
	if kills == 0 {
		t.Error("no driver was killed before its answer")
	}
	for _, d := range []*disk{a, b} {
		d.poolDriver = p.poolDriver
		d.rest()
		p.ok(p.delete(d.id))
	}
	p.empty()
}
