package observe

import "runtime"

// Names of volplane's own metrics. Those that others set are exported.
const (
	nameBuild      = "volplane_build_info"
	nameOperations = "volplane_operation_duration_seconds"
	// Waiting is how many objects wait, by the cause that `volplane why` tells of them.
	Waiting = "volplane_waiting"
	// WaitingOldest is how long ago the oldest of these causes began.
	WaitingOldest = "volplane_waiting_oldest_seconds"
	// DriverUp says whether a driver is connected.
	DriverUp = "volplane_driver_up"
	// Intents is how many intents are not resolved.
	Intents = "volplane_intents"
	// Leftover is how many things are left of what no record names.
	Leftover = "volplane_leftover"
	// VolumeReadOnly says whether a volume can be written to on a node.
	VolumeReadOnly = "volplane_volume_read_only"
	// Heartbeat is when a node was heard of last.
	Heartbeat = "volplane_node_heartbeat_timestamp_seconds"
	// PoolSize and PoolAvailable are of the bundled driver's pool, and EtcdUsed and EtcdLimit of the API server's store.
	PoolSize      = "volplane_pool_size_bytes"
	PoolAvailable = "volplane_pool_available_bytes"
	EtcdUsed      = "volplane_etcd_used_bytes"
	EtcdLimit     = "volplane_etcd_limit_bytes"
)

// Names of the node agent's metrics, which are a kubelet's.
const (
	VolumeCapacity   = "kubelet_volume_stats_capacity_bytes"
	VolumeAvailable  = "kubelet_volume_stats_available_bytes"
	VolumeUsed       = "kubelet_volume_stats_used_bytes"
	VolumeInodes     = "kubelet_volume_stats_inodes"
	VolumeInodesFree = "kubelet_volume_stats_inodes_free"
	VolumeInodesUsed = "kubelet_volume_stats_inodes_used"
	StorageHealth    = "csi_node_storage_health_status"
)

func ownFamilies() []Family {
	cause := []string{"cause"}
	return []Family{
		{
			nameBuild, gauge,
			[]string{"version", "revision", "goversion"},
			"Build of the program. The value is always 1.", nil, FromAll,
		},
		{
			nameOperations, histogram,
			[]string{"controller", "operation", "result"},
			"Time that a controller took for one step, by the kind of the object and the result: ok, conflict (the object " +
				"had changed, and is looked at again) or error.",
			[]float64{.01, .05, .1, .5, 1, 5, 15, 60, 300, 600},
			FromBoth,
		},
		{
			Waiting, gauge, cause, "Number of objects that wait, by the cause that volplane why reports for " +
				"them.", nil, FromPlane,
		},
		{
			WaitingOldest, gauge, cause, "Age of the oldest object that waits for this cause and whose time is known.", nil,
			FromPlane,
		},
		{
			DriverUp, gauge,
			[]string{"driver"},
			"Whether the driver's socket is connected: 1 if it is, 0 if it is not.", nil,
			FromBoth,
		},
		{
			Intents, gauge, nil, "Number of volumes for which a driver was asked and of which it is not known yet what became " +
				"of them.", nil, FromBoth,
		},
		{
			Leftover, gauge,
			[]string{"kind"},
			"Number of things on this node that nothing explains: mount is a mount whose volume is unknown, and " +
				"record is a record of the node agent that cannot be read.",
			nil, FromNode,
		},
		{Heartbeat, gauge, []string{"node"}, "Time at which the node was heard of last.", nil, FromPlane},
		{PoolSize, gauge, nil, "Size of the filesystem in which the bundled driver has its volumes.", nil, FromPlane},
		{
			PoolAvailable, gauge, nil,
			"Bytes that the volumes of the bundled driver may still take of that filesystem.",
			nil, FromPlane,
		},
		{EtcdUsed, gauge, nil, "Size of the data in the API server's store.", nil, FromPlane},
		{EtcdLimit, gauge, nil, "Size of the data above which the API server refuses new objects.", nil, FromPlane},
	}
}

func nodeFamilies() []Family {
	claim := []string{"namespace", "persistentvolumeclaim"}
	return []Family{
		{VolumeCapacity, gauge, claim, "[ALPHA] Capacity in bytes of the volume", nil, FromNode},
		{VolumeAvailable, gauge, claim, "[ALPHA] Number of available bytes in the volume", nil, FromNode},
		{VolumeUsed, gauge, claim, "[ALPHA] Number of used bytes in the volume", nil, FromNode},
		{VolumeInodes, gauge, claim, "[ALPHA] Maximum number of inodes in the volume", nil, FromNode},
		{VolumeInodesFree, gauge, claim, "[ALPHA] Number of free inodes in the volume", nil, FromNode},
		{VolumeInodesUsed, gauge, claim, "[ALPHA] Number of used inodes in the volume", nil, FromNode},
		{
			VolumeReadOnly, gauge, claim,
			"Whether the volume is read-only on this node: 1 if no user there can write to it, 0 if one can.", nil, FromNode,
		},
		{
			StorageHealth, gauge,
			[]string{"driver_name", "status", "reason"},
			"[ALPHA] CSI node storage backend health conditions currently reported (1 = present).", nil, FromNode,
		},
	}
}

func goVersion() string { return runtime.Version() }
