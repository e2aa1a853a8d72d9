package up

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/internal/process/observe"
	"volplane.dev/volplane/standalone/apiserver"
)

// measure reports the room of the store and of the bundled driver's pool.
func (o Options) measure(r *observe.Registry, server *apiserver.Server) {
	r.Gauge(observe.EtcdUsed, func(set observe.Set) { set(float64(server.Room().Used)) })
	r.Gauge(observe.EtcdLimit, func(set observe.Set) {
		if limit := server.Room().Limit; limit > 0 { // an older external etcd does not report it
			set(float64(limit))
		}
	})
	keep := o.keep()
	r.Gauge(observe.PoolSize, func(set observe.Set) {
		if s, ok := o.poolRoom(); ok {
			set(float64(int64(s.Blocks) * s.Bsize))
		}
	})
	r.Gauge(observe.PoolAvailable, func(set observe.Set) {
		if s, ok := o.poolRoom(); ok {
			set(float64(max(0, int64(s.Bavail)*s.Bsize-keep)))
		}
	})
}

// poolRoom returns the room of the pool's filesystem; false until there is a pool.
func (o Options) poolRoom() (unix.Statfs_t, bool) {
	var s unix.Statfs_t
	err := unix.Statfs(o.pool(), &s)
	return s, err == nil
}

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
	return diskspace.Kept(int64(s.Blocks) * s.Bsize)
}
