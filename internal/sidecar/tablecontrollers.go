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
		flag("volume-name-prefix", of, "pvc", "`prefix` of the names of volumes",
			func(o *Options) any { return &o.Provisioner.NamePrefix }),
		flag("volume-name-uuid-length", of, "-1",
			"characters of the claim's UID in the names of volumes; -1 for all of them",
			func(o *Options) any { return cut{&o.Provisioner.NameLength} }),
		flag("default-fstype", of, "", "filesystem `type` of volumes whose class names none",
			func(o *Options) any { return &o.Provisioner.DefaultFSType }),
		flag("extra-create-metadata", of, "false",
			"tell the driver the names of the claim and of the volume with CreateVolume",
			func(o *Options) any { return &o.Provisioner.ExtraMetadata }),
		flag("strict-topology", of, "false",
			"require the place of the node that was chosen, and not the others that the class allows",
			func(o *Options) any { return &o.Provisioner.StrictTopology }),
		flag("immediate-topology", of, "true",
			"pass the topologies of all nodes to the driver for classes that bind immediately",
			func(o *Options) any { return inverted{&o.Provisioner.WithoutImmediateTopology} }),
		flag("controller-publish-readonly", of, "false", "mark volumes as read-only if their claim requests only that",
			func(o *Options) any { return &o.Provisioner.PublishReadOnly }),
		flag("prevent-volume-mode-conversion", of, "true",
			"refuse to restore a snapshot to a volume of another mode, unless its content allows it",
			func(o *Options) any { return inverted{&o.Provisioner.AllowModeConversion} }),
		flag("node-deployment", of, "false",
			"make and delete only the volumes of the node $NODE_NAME, beside a driver which runs on each node",
			func(o *Options) any { return &o.raw.nodeDeployment }),
		flag("node-deployment-immediate-binding", of, "true",
			"with --node-deployment, also take claims for which no scheduler selects a node",
			func(o *Options) any { return inverted{&o.Provisioner.OnNode.WithoutImmediate} }),
		flag("node-deployment-base-delay", of, "20s", "longest first pause before such a claim is taken, which is random",
			func(o *Options) any { return &o.Provisioner.OnNode.BaseDelay }),
		flag("node-deployment-max-delay", of, "1m0s", "longest pause after several attempts",
			func(o *Options) any { return &o.Provisioner.OnNode.MaxDelay }),
		ignored("cloning-protection-threads", of, text, "1", "finalizers of clones are the same worker's"),
		ignored("snapshot-orphan-sweep-interval", of, text, "5m0s",
			"the finalizer of a snapshot is removed as soon as nothing is restored from it"),
	}
}

func capacityFlags() []Flag {
	of := with(Provisioner)
	const unlimited = "writes of capacities have no limit of their own"
	return []Flag{
		flag("enable-capacity", of, "false", "tell the scheduler how much room the driver has",
			func(o *Options) any { return &o.raw.capacity }),
		flag("capacity-for-immediate-binding", of, "false", "also for classes with immediate binding",
			func(o *Options) any { return &o.CapacityForImmediate }),
		flag("capacity-poll-interval", of, "1m0s", "interval at which the driver is asked for its free capacity",
			func(o *Options) any { return &o.CapacityPoll }),
		flag("capacity-ownerref-level", of, "1",
			"what owns the capacities: the Pod (0), its owner (1), or the owner of that (2); -1 for nothing",
			func(o *Options) any { return &o.raw.ownerLevel }),
		ignored("capacity-threads", of, text, "1", "one worker is enough for what the driver is asked once a minute"),
		ignored("kube-api-capacity-qps", of, text, "1", unlimited),
		ignored("kube-api-capacity-burst", of, text, "5", unlimited),
	}
}

func attacherFlags() []Flag {
	of := with(Attacher)
	return []Flag{
		flag("max-entries", of, "0", "how many volumes the driver is asked to list per call, 0 for no limit; "+
			"volplane controller asks for 500 unless it is given",
			func(o *Options) any { return givenCount{&o.Attacher.MaxEntries} }),
		flag("default-fstype", of, "", "filesystem `type` of volumes that name none",
			func(o *Options) any { return &o.Attacher.DefaultFSType }),
		flag("reconcile-sync", of, "1m0s", "interval at which the driver is asked what it has attached",
			func(o *Options) any { return &o.ReconcileSync }),
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
		flag("resize-timeout", of, "10s", "time limit of ControllerExpandVolume",
			func(o *Options) any { return &o.Resizer.Timeout }),
		flag("modify-timeout", of, "10s", "time limit of ControllerModifyVolume",
			func(o *Options) any { return &o.Resizer.ModifyTimeout }),
		flag("extra-modify-metadata", of, "false",
			"tell the driver the names of the claim and of the volume with ControllerModifyVolume",
			func(o *Options) any { return &o.Resizer.ExtraMetadata }),
		ignored("handle-volume-inuse-error", of, boolean, "true", "a volume in use is tried again like any other"),
	}
}

func snapshotterFlags() []Flag {
	of := with(Snapshotter)
	return []Flag{
		flag("snapshot-name-prefix", of, "snapshot", "`prefix` of the names of snapshots",
			func(o *Options) any { return &o.Snapshotter.NamePrefix }),
		flag("snapshot-name-uuid-length", of, "-1", "characters of the UID in the names of snapshots; -1 for all of them",
			func(o *Options) any { return cut{&o.Snapshotter.NameLength} }),
		flag("groupsnapshot-name-prefix", of, "groupsnapshot", "`prefix` of the names of groups of snapshots",
			func(o *Options) any { return &o.Snapshotter.GroupNamePrefix }),
		flag("groupsnapshot-name-uuid-length", of, "-1",
			"characters of the UID in the names of groups of snapshots; -1 for all of them",
			func(o *Options) any { return cut{&o.Snapshotter.GroupNameLength} }),
		flag("extra-create-metadata", of, "false",
			"pass the names of the snapshot and of its content to the driver with CreateSnapshot",
			func(o *Options) any { return &o.Snapshotter.ExtraMetadata }),
		flag("node-deployment", of, "false", "take only the snapshots of volumes of the node $NODE_NAME",
			func(o *Options) any { return &o.raw.snapshotsOfNode }),
	}
}

func snapshotControllerFlags() []Flag {
	of := with(SnapshotController)
	return []Flag{
		flag("enable-distributed-snapshotting", of, "false",
			"have the snapshots of a volume that is on one node taken there",
			func(o *Options) any { return &o.SnapshotController.Distributed }),
		ignored("prevent-volume-mode-conversion", of, boolean, "true",
			"the mode is always in the content; csi-provisioner has a flag that says whether it counts"),
		ignored("retry-crd-interval-max", of, text, "30s", "custom resources that are missing are waited for without an end"),
	}
}

func healthMonitorFlags() []Flag {
	of := with(HealthMonitor)
	return []Flag{
		flag("monitor-interval", of, "1m0s", "interval at which each volume is requested",
			func(o *Options) any { return &o.HealthMonitor.Every }),
		ignored("list-volumes-interval", of, text, "5m0s", "a list is also requested at --monitor-interval"),
		flag("enable-node-watcher", of, "false", "tell claims when the node of their Pod has failed",
			func(o *Options) any { return &o.HealthMonitor.WatchesNodes }),
		ignored("volume-list-add-interval", of, text, "5m0s", watched),
		ignored("node-list-add-interval", of, text, "5m0s", watched),
	}
}
