package sidecar

// pace returns how a role calls its driver.
func (o *Options) pace(r Role) *Pace {
	return map[Role]*Pace{
		Provisioner: &o.Provisioner.Pace, Attacher: &o.Attacher.Pace, Resizer: &o.Resizer.Pace,
		Snapshotter: &o.Snapshotter.Pace, SnapshotController: &o.SnapshotController.Pace,
		HealthMonitor: &o.HealthMonitor.Pace,
	}[r]
}

// paceFlags say how fast a sidecar works.
func paceFlags() []Flag {
	limit := func(def string, of ...Role) Flag {
		return Flag{
			Name: "timeout", Of: of, Default: def, Usage: "time limit of each call of the driver",
			into: func(o *Options, r Role) any { return &o.pace(r).Timeout },
		}
	}
	workers := func(name, def string, of ...Role) Flag {
		return Flag{
			Name: name, Of: of, Default: def, Usage: "how many objects are worked on at the same time",
			into: func(o *Options, r Role) any { return workerCount{&o.pace(r).Workers} },
		}
	}
	retried := with(Provisioner, Attacher, Resizer, Snapshotter, SnapshotController)
	return []Flag{
		limit("10s", Provisioner), limit("15s", Attacher, HealthMonitor), limit("1m0s", Snapshotter),
		workers("worker-threads", "100", Provisioner),
		workers("worker-threads", "10", Attacher, Snapshotter, SnapshotController, HealthMonitor),
		workers("workers", "10", Resizer),
		{
			Name: "retry-interval-start", Of: retried, Default: "1s",
			Usage: "first pause before something that failed is tried again; it doubles each time",
			into:  func(o *Options, r Role) any { return &o.pace(r).RetryStart },
		},
		{
			Name: "retry-interval-max", Of: retried, Default: "5m0s", Usage: "longest pause between two attempts",
			into: func(o *Options, r Role) any { return &o.pace(r).RetryMax },
		},
		ignored("resync", with(Attacher, HealthMonitor), text, "10m0s", watched),
		ignored("resync-period", with(Resizer), text, "10m0s", watched),
		ignored("resync-period", with(Snapshotter, SnapshotController), text, "15m0s", watched),
	}
}

const watched = "objects are watched, and nothing is forgotten that is looked at again from time to time"

func provisionerFlags() []Flag {
	of := with(Provisioner)
	return []Flag{
		{
			Name: "volume-name-prefix", Of: of, Default: "pvc", Usage: "`prefix` of the names of volumes",
			into: func(o *Options, _ Role) any { return &o.Provisioner.NamePrefix },
		},
		{
			Name: "volume-name-uuid-length", Of: of, Default: "-1",
			Usage: "characters of the claim's UID in the names of volumes; -1 for all of them",
			into:  func(o *Options, _ Role) any { return cut{&o.Provisioner.NameLength} },
		},
		{
			Name: "default-fstype", Of: of, Usage: "filesystem `type` of volumes whose class names none",
			into: func(o *Options, _ Role) any { return &o.Provisioner.DefaultFSType },
		},
		{
			Name: "extra-create-metadata", Of: of, Default: "false",
			Usage: "tell the driver the names of the claim and of the volume with CreateVolume",
			into:  func(o *Options, _ Role) any { return &o.Provisioner.ExtraMetadata },
		},
		{
			Name: "strict-topology", Of: of, Default: "false",
			Usage: "require the place of the node that was chosen, and not the others that the class allows",
			into:  func(o *Options, _ Role) any { return &o.Provisioner.StrictTopology },
		},
		{
			Name: "immediate-topology", Of: of, Default: "true",
			Usage: "tell the driver the places of all nodes with volumes of classes that bind at once",
			into:  func(o *Options, _ Role) any { return inverted{&o.Provisioner.WithoutImmediateTopology} },
		},
		{
			Name: "controller-publish-readonly", Of: of, Default: "false",
			Usage: "mark volumes as read-only whose claim wants nothing else",
			into:  func(o *Options, _ Role) any { return &o.Provisioner.PublishReadOnly },
		},
		{
			Name: "prevent-volume-mode-conversion", Of: of, Default: "true",
			Usage: "refuse to restore a snapshot to a volume of another mode, unless its content allows it",
			into:  func(o *Options, _ Role) any { return inverted{&o.Provisioner.AllowModeConversion} },
		},
		{
			Name: "node-deployment", Of: of, Default: "false",
			Usage: "make and delete only the volumes of the node $NODE_NAME, beside a driver which runs on each node",
			into:  func(o *Options, _ Role) any { return &o.raw.nodeDeployment },
		},
		{
			Name: "node-deployment-immediate-binding", Of: of, Default: "true",
			Usage: "with --node-deployment, also take claims for which nobody selects a node",
			into:  func(o *Options, _ Role) any { return inverted{&o.Provisioner.OnNode.WithoutImmediate} },
		},
		{
			Name: "node-deployment-base-delay", Of: of, Default: "20s",
			Usage: "longest first pause before such a claim is taken, which is random",
			into:  func(o *Options, _ Role) any { return &o.Provisioner.OnNode.BaseDelay },
		},
		{
			Name: "node-deployment-max-delay", Of: of, Default: "1m0s", Usage: "longest pause after several attempts",
			into: func(o *Options, _ Role) any { return &o.Provisioner.OnNode.MaxDelay },
		},
		ignored("cloning-protection-threads", of, text, "1", "finalizers of clones are the same worker's"),
		ignored("snapshot-orphan-sweep-interval", of, text, "5m0s",
			"the finalizer of a snapshot goes as soon as nothing is restored from it"),
	}
}

func capacityFlags() []Flag {
	of := with(Provisioner)
	const unlimited = "writes of capacities have no limit of their own"
	return []Flag{
		{
			Name: "enable-capacity", Of: of, Default: "false", Usage: "tell the scheduler how much room the driver has",
			into: func(o *Options, _ Role) any { return &o.raw.capacity },
		},
		{
			Name: "capacity-for-immediate-binding", Of: of, Default: "false", Usage: "also for classes with immediate binding",
			into: func(o *Options, _ Role) any { return &o.CapacityForImmediate },
		},
		{
			Name: "capacity-poll-interval", Of: of, Default: "1m0s",
			Usage: "interval at which the driver is asked for its free capacity",
			into:  func(o *Options, _ Role) any { return &o.CapacityPoll },
		},
		{
			Name: "capacity-ownerref-level", Of: of, Default: "1",
			Usage: "what owns the capacities: the Pod (0), what has made it (1), or what has made that (2); -1 for nothing",
			into:  func(o *Options, _ Role) any { return &o.raw.ownerLevel },
		},
		ignored("capacity-threads", of, text, "1", "one worker is enough for what the driver is asked once a minute"),
		ignored("kube-api-capacity-qps", of, text, "1", unlimited),
		ignored("kube-api-capacity-burst", of, text, "5", unlimited),
	}
}

func attacherFlags() []Flag {
	of := with(Attacher)
	return []Flag{
		{
			Name: "max-entries", Of: of, Default: "0",
			Usage: "how many volumes the driver is asked to list at once, 0 for as many as it likes; " +
				"volplane controller asks for 500 unless it is given",
			into: func(o *Options, _ Role) any { return givenCount{&o.Attacher.MaxEntries} },
		},
		{
			Name: "default-fstype", Of: of, Usage: "filesystem `type` of volumes that name none",
			into: func(o *Options, _ Role) any { return &o.Attacher.DefaultFSType },
		},
		{
			Name: "reconcile-sync", Of: of, Default: "1m0s",
			Usage: "interval at which the driver is asked what it has attached",
			into:  func(o *Options, _ Role) any { return &o.ReconcileSync },
		},
		ignored("max-grpc-log-length", of, text, "-1", "requests and answers of the driver are not in the log"),
	}
}

func resizerFlags() []Flag {
	of := with(Resizer)
	return []Flag{
		{
			Name: "timeout", Of: of, Default: "10s", WhenGiven: true,
			Usage: "time limit of each call of the driver, instead of --resize-timeout and --modify-timeout",
			into:  func(o *Options, _ Role) any { return &o.raw.resizerTimeout },
		},
		{
			Name: "resize-timeout", Of: of, Default: "10s", Usage: "time limit of ControllerExpandVolume",
			into: func(o *Options, _ Role) any { return &o.Resizer.Timeout },
		},
		{
			Name: "modify-timeout", Of: of, Default: "10s", Usage: "time limit of ControllerModifyVolume",
			into: func(o *Options, _ Role) any { return &o.Resizer.ModifyTimeout },
		},
		{
			Name: "extra-modify-metadata", Of: of, Default: "false",
			Usage: "tell the driver the names of the claim and of the volume with ControllerModifyVolume",
			into:  func(o *Options, _ Role) any { return &o.Resizer.ExtraMetadata },
		},
		ignored("handle-volume-inuse-error", of, boolean, "true", "a volume in use is tried again like any other"),
	}
}

func snapshotterFlags() []Flag {
	of := with(Snapshotter)
	return []Flag{
		{
			Name: "snapshot-name-prefix", Of: of, Default: "snapshot", Usage: "`prefix` of the names of snapshots",
			into: func(o *Options, _ Role) any { return &o.Snapshotter.NamePrefix },
		},
		{
			Name: "snapshot-name-uuid-length", Of: of, Default: "-1",
			Usage: "characters of the UID in the names of snapshots; -1 for all of them",
			into:  func(o *Options, _ Role) any { return cut{&o.Snapshotter.NameLength} },
		},
		{
			Name: "groupsnapshot-name-prefix", Of: of, Default: "groupsnapshot",
			Usage: "`prefix` of the names of groups of snapshots",
			into:  func(o *Options, _ Role) any { return &o.Snapshotter.GroupNamePrefix },
		},
		{
			Name: "groupsnapshot-name-uuid-length", Of: of, Default: "-1",
			Usage: "characters of the UID in the names of groups of snapshots; -1 for all of them",
			into:  func(o *Options, _ Role) any { return cut{&o.Snapshotter.GroupNameLength} },
		},
		{
			Name: "extra-create-metadata", Of: of, Default: "false",
			Usage: "tell the driver the names of the snapshot and of its content with CreateSnapshot",
			into:  func(o *Options, _ Role) any { return &o.Snapshotter.ExtraMetadata },
		},
		{
			Name: "node-deployment", Of: of, Default: "false",
			Usage: "take only the snapshots of volumes of the node $NODE_NAME",
			into:  func(o *Options, _ Role) any { return &o.raw.snapshotsOfNode },
		},
	}
}

func snapshotControllerFlags() []Flag {
	of := with(SnapshotController)
	return []Flag{
		{
			Name: "enable-distributed-snapshotting", Of: of, Default: "false",
			Usage: "have the snapshots of a volume that is on one node taken there",
			into:  func(o *Options, _ Role) any { return &o.SnapshotController.Distributed },
		},
		ignored("prevent-volume-mode-conversion", of, boolean, "true",
			"the mode is always in the content; csi-provisioner has a flag that says whether it counts"),
		ignored("retry-crd-interval-max", of, text, "30s", "custom resources that are missing are waited for without an end"),
	}
}

func healthMonitorFlags() []Flag {
	of := with(HealthMonitor)
	return []Flag{
		{
			Name: "monitor-interval", Of: of, Default: "1m0s", Usage: "interval at which each volume is asked for",
			into: func(o *Options, _ Role) any { return &o.HealthMonitor.Every },
		},
		ignored("list-volumes-interval", of, text, "5m0s", "a list is asked for at --monitor-interval, too"),
		{
			Name: "enable-node-watcher", Of: of, Default: "false",
			Usage: "tell claims when the node of their Pod has failed",
			into:  func(o *Options, _ Role) any { return &o.HealthMonitor.WatchesNodes },
		},
		ignored("volume-list-add-interval", of, text, "5m0s", watched),
		ignored("node-list-add-interval", of, text, "5m0s", watched),
	}
}
