package local

import (
	"io/fs"
	"log/slog"
	"strconv"
	"syscall"
	"time"

	"volplane.dev/volplane/internal/volume"
)

// A copy that takes longer than patience is logged, and again after each remind.
const (
	patience = 2 * time.Second
	remind   = 10 * time.Second
)

// progress logs how far a long copy is, because the writers of a mounted volume wait for its end.
type progress struct {
	log         *slog.Logger
	begun, told time.Time
	done, total int64
}

func newProgress(log *slog.Logger, image string, info fs.FileInfo) *progress {
	total := info.Size()
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		total = s.Blocks * 512 // without the holes
	}
	return &progress{log: log.With("driver", volume.LocalDriver, "image", image), begun: time.Now(), total: total}
}

// add counts more copied bytes.
func (p *progress) add(bytes int64) {
	p.done += bytes
	if now := time.Now(); now.Sub(p.begun) >= patience && now.Sub(p.told) >= remind {
		p.told = now
		p.log.Info("a full copy takes long; on xfs or btrfs the pool would share blocks",
			"copied", mebibytes(p.done), "of", mebibytes(p.total), "seconds", int(now.Sub(p.begun).Seconds()))
	}
}

func mebibytes(n int64) string { return strconv.FormatInt(n>>20, 10) + " MiB" }
