package up

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/decide/room"
)

// keep returns how many bytes of the pool's disk are reserved for the control plane: 0
// if the pool is on another disk than the data directory.
func (o Options) keep() int64 {
	var data, pool unix.Stat_t
	if err := unix.Stat(o.DataDir, &data); err != nil {
		return 0
	}
	err := unix.Stat(o.pool(), &pool)
	if err == nil && pool.Dev != data.Dev || err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0
	}
	var s unix.Statfs_t
	if err := unix.Statfs(o.DataDir, &s); err != nil {
		return 0
	}
	return room.Kept(int64(s.Blocks) * s.Bsize)
}
