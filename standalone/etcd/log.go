package etcd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/protobuf/proto"
)

// logFacts are what the log of a member says of itself.
type logFacts struct {
	exists bool
	// first is the entry that the oldest file begins with; last is the newest entry.
	first, last uint64
	// commit is the entry up to which everything is confirmed.
	commit uint64
	// snapshots are the entries that the database had according to the log.
	snapshots []uint64
	meta      bool
	// cluster is the id of the member's cluster.
	cluster string
}

// readLog reads the whole log. A crash may leave half a record at the end of
// the last file: that one was never confirmed, and etcd cuts it off.
func readLog(dir string) (logFacts, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil {
		return logFacts{}, fmt.Errorf("check etcd: %w", err)
	}
	slices.Sort(names)
	l := logFacts{exists: len(names) > 0}
	var crc uint32
	var before uint64
	for i, path := range names {
		var sequence, index uint64
		if _, err := fmt.Sscanf(filepath.Base(path), "%016x-%016x.wal", &sequence, &index); err != nil {
			return l, fmt.Errorf("%w: %s does not have the name of a log file", ErrDamaged, path)
		}
		if i == 0 {
			l.first = index
		} else if sequence != before+1 {
			return l, fmt.Errorf("%w: of the log %s a file before %s is missing", ErrDamaged, dir, filepath.Base(path))
		}
		before = sequence
		if crc, err = l.readFile(path, crc, i == len(names)-1); err != nil {
			return l, err
		}
	}
	return l, nil
}

// readFile reads one file of the log, whose records continue from the checksum.
func (l *logFacts) readFile(path string, crc uint32, newest bool) (uint32, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("check etcd: %w", err)
	}
	defer f.Close()
	d := wal.NewDecoder(fileutil.NewFileReader(f))
	d.UpdateCRC(crc)
	rec := &walpb.Record{}
	for {
		err := d.Decode(rec)
		switch {
		case errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF), newest && errors.Is(err, io.ErrUnexpectedEOF):
			return d.LastCRC(), nil
		case err == nil:
			err = l.take(d, rec)
		}
		if err != nil {
			return 0, fmt.Errorf("%w: %s at byte %d: %w", ErrDamaged, path, d.LastOffset(), err)
		}
	}
}

func (l *logFacts) take(d wal.Decoder, rec *walpb.Record) error {
	switch rec.GetType() {
	case wal.MetadataType:
		m := &pb.Metadata{}
		if err := proto.Unmarshal(rec.Data, m); err != nil {
			return err
		}
		l.meta, l.cluster = true, types.ID(m.GetClusterID()).String()
	case wal.EntryType:
		e := wal.MustUnmarshalEntry(rec.Data)
		if l.last != 0 && e.GetIndex() > l.last+1 {
			return fmt.Errorf("entry %d follows entry %d", e.GetIndex(), l.last)
		}
		l.last = e.GetIndex()
	case wal.StateType:
		l.commit = wal.MustUnmarshalState(rec.Data).GetCommit()
	case wal.CrcType:
		if crc := d.LastCRC(); crc != 0 && rec.Validate(crc) != nil {
			return errors.New("the file before it does not end where it ended")
		}
		d.UpdateCRC(rec.GetCrc())
	case wal.SnapshotType:
		s := &walpb.Snapshot{}
		if err := proto.Unmarshal(rec.Data, s); err != nil {
			return err
		}
		l.snapshots = append(l.snapshots, s.GetIndex())
		// A log that was created for a restored database begins after the database's entries.
		l.last = max(l.last, s.GetIndex())
	default:
		return fmt.Errorf("a record of unknown type %d", rec.GetType())
	}
	return nil
}

// check says whether log and database belong together: the log has everything that the database knows, and the database
// everything that was removed from the log.
func (l *logFacts) check(data, log string, applied uint64) error {
	snapshots := slices.DeleteFunc(slices.Clone(l.snapshots), func(s uint64) bool { return s > l.commit })
	if !l.meta || len(snapshots) == 0 {
		return fmt.Errorf("%w: the log %s has no beginning", ErrDamaged, log)
	}
	newest := slices.Max(snapshots)
	switch {
	case l.last < max(applied, l.commit):
		return fmt.Errorf("%w: the log %s ends with entry %d, the control plane has confirmed %d", ErrDamaged, log, l.last,
			max(applied, l.commit))
	case l.first > newest:
		return fmt.Errorf("%w: the log %s begins with entry %d, those from %d are missing", ErrDamaged, log, l.first, newest)
	case applied < newest:
		return fmt.Errorf("%w: the database %s knows %d entries, its log says that it had %d: it is an older one", ErrDamaged,
			data, applied, newest)
	}
	return nil
}

// ending records the first error that stops etcd; later errors are its consequences.
type ending struct {
	why  chan error
	told atomic.Bool
}

func (e *ending) tell(err error) {
	if e.told.CompareAndSwap(false, true) {
		e.why <- err
	}
}

// OnWrite ends the goroutine of etcd that logs a fatal error. etcd itself would exit the process or panic; instead, the
// process reports the error and stops properly.
func (e *ending) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(entry.Message)
	for _, f := range fields {
		if cause, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			err = fmt.Errorf("%s: %w", entry.Message, cause)
		}
	}
	e.tell(err)
	runtime.Goexit()
}

// logger returns a logger that discards everything.
func (e *ending) logger() *zap.Logger {
	return zap.New(zapcore.NewNopCore(), zap.WithFatalHook(e), zap.WithPanicHook(e))
}
