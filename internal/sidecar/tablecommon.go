package sidecar

// meetingFlags are those of sidecars that make a driver and an API server meet.
func meetingFlags() []Flag {
	elects := electing()
	labelled := controllers()
	return []Flag{
		{
			Name: "version", Of: everyone(), Default: "false", Usage: "print the version and end",
			into: func(o *Options, _ Role) any { return &o.Version },
		},
		{
			Name: "csi-address", Of: append(controllers(), Registrar, Liveness), Default: "/run/csi/socket", Shared: true,
			Usage: "`path` of the driver's socket; the driver may start later",
			into:  func(o *Options, _ Role) any { return &o.Socket },
		},
		{
			Name: "kubeconfig", Of: elects, Usage: "`path` of the kubeconfig (default that of the Pod)",
			into: func(o *Options, _ Role) any { return &o.Kubeconfig },
		},
		{
			Name: "master", Of: with(Provisioner, Resizer), Usage: "`URL` of the API server, instead of the kubeconfig's",
			into: func(o *Options, _ Role) any { return &o.Master },
		},
		{
			Name: "leader-election", Of: elects, Default: "false", Shared: true,
			Usage: "wait while another process runs the same controllers",
			into:  func(o *Options, _ Role) any { return &o.Elects },
		},
		{
			Name: "leader-election-namespace", Of: elects, Shared: true,
			Usage: "`namespace` of the leases and of what must survive (default $POD_NAMESPACE, or else the Pod's)",
			into:  func(o *Options, _ Role) any { return &o.Namespace },
		},
		{
			Name: "leader-election-lease-duration", Of: elects, Default: "15s", Shared: true,
			Usage: "how long other processes wait after the leader's last renewal",
			into:  func(o *Options, _ Role) any { return &o.Term.Duration },
		},
		{
			Name: "leader-election-renew-deadline", Of: elects, Default: "10s", Shared: true,
			Usage: "how long the leader works without being able to renew its leases",
			into:  func(o *Options, _ Role) any { return &o.Term.Deadline },
		},
		{
			Name: "leader-election-retry-period", Of: elects, Default: "5s", Shared: true, Usage: "interval between renewals",
			into: func(o *Options, _ Role) any { return &o.Term.Retry },
		},
		{
			Name: "leader-election-labels", Of: labelled, Shared: true,
			Usage: "`labels` of the leases, as KEY:VALUE, separated by commas",
			into:  func(o *Options, _ Role) any { return labels{&o.LeaseLabels} },
		},
		{
			Name: "kube-api-qps", Of: elects, Default: "5", Shared: true, WhenGiven: true,
			Usage: "requests to the API server per second; unlimited unless given",
			into:  func(o *Options, _ Role) any { return &o.QPS },
		},
		{
			Name: "kube-api-burst", Of: elects, Default: "10", Shared: true, WhenGiven: true,
			Usage: "requests that may go at once before --kube-api-qps counts",
			into:  func(o *Options, _ Role) any { return &o.Burst },
		},
		{
			Name: "feature-gates", Of: elects, Shared: true,
			Usage: "feature `gates`, as NAME=true|false, separated by commas",
			into:  func(o *Options, _ Role) any { return &o.raw.gates },
		},
	}
}

// httpFlags are those of servers of metrics and of health.
func httpFlags() []Flag {
	return []Flag{
		{
			Name: "http-endpoint", Of: append(electing(), Registrar, Liveness), Shared: true,
			Usage: "`address` of metrics and health, such as :8080; several are separated by commas",
			into:  func(o *Options, _ Role) any { return &o.raw.httpEndpoint },
		},
		{
			Name: "metrics-address", Of: append(controllers(), Liveness), Shared: true,
			Usage: "`address` of metrics alone; --http-endpoint is newer",
			into:  func(o *Options, _ Role) any { return &o.raw.metricsAddress },
		},
		{
			Name: "metrics-path", Of: append(electing(), Liveness), Default: "/metrics", Shared: true,
			Usage: "`path` of the metrics",
			into:  func(o *Options, _ Role) any { return &o.raw.metricsPath },
		},
		{
			Name: "enable-pprof", Of: with(Provisioner, Registrar), Default: "false", Shared: true,
			Usage: "serve /debug/pprof at --http-endpoint",
			into:  func(o *Options, _ Role) any { return &o.raw.pprof },
		},
	}
}

// logFlags are those of logs.
func logFlags() []Flag {
	const one = "the log is one stream, which nothing holds back"
	all := everyone()
	return []Flag{
		{
			Name: "v", Of: all, Default: "0", Usage: VerbosityUsage,
			into: func(o *Options, _ Role) any { return &o.Verbosity },
		},
		{
			Name: "logging-format", Of: all, Default: "text", Shared: true, Usage: LogFormatUsage,
			into: func(o *Options, _ Role) any { return &o.LogFormat },
		},
		ignored("vmodule", all, text, "", "--v counts for the whole program"),
		ignored("log-flush-frequency", all, text, "5s", one),
		ignored("log-text-split-stream", all, boolean, "false", one),
		ignored("log-text-info-buffer-size", all, text, "", one),
		ignored("log-json-split-stream", all, boolean, "false", one),
		ignored("log-json-info-buffer-size", all, text, "", one),
		ignored("automaxprocs", all, boolean, "", "the Go runtime keeps to the container's share of CPUs by itself"),
	}
}

// oldFlags are those that programs of years ago had, and that manifests still have.
func oldFlags() []Flag {
	const klog = "the log goes to the standard error"
	all := everyone()
	out := []Flag{
		ignored("connection-timeout", all, text, "", "the driver is waited for without an end"),
		ignored("leader-election-type", controllers(), text, "", "leader election has Leases"),
		ignored("leader-election-identity", controllers(), text, "", "each process has an identity of its own"),
	}
	for _, name := range []string{
		"logtostderr", "alsologtostderr", "skip_headers", "skip_log_headers", "add_dir_header", "one_output",
	} {
		out = append(out, ignored(name, all, boolean, "", klog))
	}
	for _, name := range []string{"stderrthreshold", "log_dir", "log_file", "log_file_max_size", "log_backtrace_at"} {
		out = append(out, ignored(name, all, text, "", klog))
	}
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

// ownFlags are those that only volplane has.
func ownFlags() []Flag {
	return []Flag{
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
