package sidecar

// meetingFlags are those of sidecars that make a driver and an API server meet.
func meetingFlags() []Flag {
	elects := electing()
	labelled := controllers()
	return []Flag{
		flag("version", everyone(), "false", "print the version and end", func(o *Options) any { return &o.Version }),
		shared(flag("csi-address", append(controllers(), SnapshotMetadata, Registrar, Liveness), "/run/csi/socket",
			"`path` of the driver's socket; the driver may start later", func(o *Options) any { return &o.Socket })),
		flag("kubeconfig", clients(), "", "`path` of the kubeconfig (default that of the Pod)",
			func(o *Options) any { return &o.Kubeconfig }),
		flag("master", with(Provisioner, Resizer), "", "`URL` of the API server, instead of the kubeconfig's",
			func(o *Options) any { return &o.Master }),
		shared(flag("leader-election", elects, "false", "wait while another process runs the same controllers",
			func(o *Options) any { return &o.Elects })),
		shared(flag("leader-election-namespace", elects, "",
			"`namespace` of the leases and of what must survive (default $POD_NAMESPACE, or else the Pod's)",
			func(o *Options) any { return &o.Namespace })),
		shared(flag("leader-election-lease-duration", elects, "15s",
			"how long other processes wait after the leader's last renewal",
			func(o *Options) any { return &o.Term.Duration })),
		shared(flag("leader-election-renew-deadline", elects, "10s",
			"how long the leader works without being able to renew its leases",
			func(o *Options) any { return &o.Term.Deadline })),
		shared(flag("leader-election-retry-period", elects, "5s", "interval between renewals",
			func(o *Options) any { return &o.Term.Retry })),
		shared(flag("leader-election-labels", labelled, "", "`labels` of the leases, as KEY:VALUE, separated by commas",
			func(o *Options) any { return labels{&o.LeaseLabels} })),
		{
			Name: "kube-api-qps", Of: clients(), Default: "5", Shared: true, WhenGiven: true,
			Usage: "requests to the API server per second; unlimited unless given",
			into:  func(o *Options, _ Role) any { return &o.QPS },
		},
		{
			Name: "kube-api-burst", Of: clients(), Default: "10", Shared: true, WhenGiven: true,
			Usage: "requests that may be sent in a burst above --kube-api-qps",
			into:  func(o *Options, _ Role) any { return &o.Burst },
		},
		shared(flag("feature-gates", elects, "", "feature `gates`, as NAME=true|false, separated by commas",
			func(o *Options) any { return &o.raw.gates })),
	}
}

// httpFlags are those of servers of metrics and of health.
func httpFlags() []Flag {
	return []Flag{
		shared(flag("http-endpoint", append(electing(), Registrar, Liveness), "",
			"`address` of metrics and health, such as :8080; several are separated by commas",
			func(o *Options) any { return &o.raw.httpEndpoint })),
		shared(flag("metrics-address", append(controllers(), Liveness), "",
			"`address` of metrics alone; --http-endpoint is newer", func(o *Options) any { return &o.raw.metricsAddress })),
		shared(flag("metrics-path", append(clients(), Liveness), "/metrics", "`path` of the metrics",
			func(o *Options) any { return &o.raw.metricsPath })),
		shared(flag("enable-pprof", with(Provisioner, Registrar), "false", "serve /debug/pprof at --http-endpoint",
			func(o *Options) any { return &o.raw.pprof })),
	}
}

// logFlags are those of logs.
func logFlags() []Flag {
	const one = "the log is one stream, which nothing holds back"
	all := logging()
	return []Flag{
		flag("v", everyone(), "0", VerbosityUsage, func(o *Options) any { return &o.Verbosity }),
		shared(flag("logging-format", all, "text", LogFormatUsage, func(o *Options) any { return &o.LogFormat })),
		ignored("vmodule", everyone(), text, "", "--v counts for the whole program"),
		ignored("log-flush-frequency", all, text, "5s", one),
		ignored("log-text-split-stream", all, boolean, "false", one),
		ignored("log-text-info-buffer-size", all, text, "", one),
		ignored("log-json-split-stream", all, boolean, "false", one),
		ignored("log-json-info-buffer-size", all, text, "", one),
		ignored("automaxprocs", all, boolean, "", "the Go runtime respects the container's CPU limit on its own"),
	}
}

// oldFlags are those that programs of years ago had, and that manifests still have.
func oldFlags() []Flag {
	all := logging()
	out := []Flag{
		ignored("connection-timeout", all, text, "", "the driver is waited for without an end"),
		ignored("leader-election-type", controllers(), text, "", "leader election has Leases"),
		ignored("leader-election-identity", controllers(), text, "", "each process has an identity of its own"),
	}
	out = append(out, klogFlags(all)...)
	out = append(out, Flag{
		Name: groupsFlag, Of: with(Snapshotter, SnapshotController), Shared: true,
		Usage: "take snapshots of groups of volumes; --feature-gates=CSIVolumeGroupSnapshot=true is newer",
		into:  func(o *Options, _ Role) any { return oneGate{&o.raw.gates, "CSIVolumeGroupSnapshot"} },
	})
	for i := range out {
		out[i].Old = true
	}
	return out
}

// klogFlags are those of klog, which most of upstream's programs have no longer.
func klogFlags(of []Role) []Flag {
	const why = "the log is written to standard error"
	var out []Flag
	for _, name := range []string{
		"logtostderr", "alsologtostderr", "skip_headers", "skip_log_headers", "add_dir_header", "one_output",
	} {
		out = append(out, ignored(name, of, boolean, "", why))
	}
	for _, name := range []string{"stderrthreshold", "log_dir", "log_file", "log_file_max_size", "log_backtrace_at"} {
		out = append(out, ignored(name, of, text, "", why))
	}
	return out
}

// ownFlags are those that only volplane has.
func ownFlags() []Flag {
	return []Flag{
		{
			Name: "logging-format", Of: with(SnapshotMetadata), Default: "text", Old: true, Shared: true, Usage: LogFormatUsage,
			into: func(o *Options, _ Role) any { return &o.LogFormat },
		},
		{
			Name: "beside-others", Of: electing(), Old: true, Shared: true,
			Usage: "start although others hold leases of the driver in another namespace: both will call it",
			into:  func(o *Options, _ Role) any { return &o.BesideOthers },
		},
		{
			Name: "short-leases", Of: electing(), Old: true, Shared: true,
			Usage: "hold all leases for as short as the first one: sidecars from before 2023 need it",
			into:  func(o *Options, _ Role) any { return &o.ShortLeases },
		},
	}
}

// flag is a flag with upstream's default; value returns where its value is stored.
func flag(name string, of []Role, def, usage string, value func(*Options) any) Flag {
	return Flag{Name: name, Of: of, Default: def, Usage: usage, into: func(o *Options, _ Role) any { return value(o) }}
}

// shared is a flag that all sidecars of a process share.
func shared(f Flag) Flag {
	f.Shared = true
	return f
}

// Kinds of values of flags that do nothing: one that is a boolean has no value after it.
func text() any    { return new(string) }
func boolean() any { return new(bool) }

// ignored is a flag that is accepted and does nothing.
func ignored(name string, of []Role, kind func() any, def, why string) Flag {
	return Flag{
		Name: name, Of: of, Default: def, Usage: "has no effect here: " + why, Ignored: why,
		into: func(*Options, Role) any { return kind() },
	}
}
