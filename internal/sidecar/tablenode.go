package sidecar

func registrarFlags() []Flag {
	of := with(Registrar)
	return []Flag{
		{
			Name: "kubelet-registration-path", Of: of, Usage: "`path` of the same socket as the kubelet sees it",
			into: func(o *Options, _ Role) any { return &o.Registrar.Endpoint },
		},
		{
			Name: "plugin-registration-path", Of: of, Default: "/registration",
			Usage: "`directory` of the kubelet's registration sockets",
			into:  func(o *Options, _ Role) any { return &o.Registrar.Dir },
		},
		{
			Name: "timeout", Of: of, Default: "1s", Usage: "time limit of a call of the driver",
			into: func(o *Options, _ Role) any { return &o.Registrar.Timeout },
		},
		{
			Name: "health-port", Of: of, Default: "0", Usage: "port of /healthz; --http-endpoint is newer",
			into: func(o *Options, _ Role) any { return &o.raw.healthPort },
		},
		{
			Name: "mode", Of: of,
			Usage: "kubelet-registration-probe ends at once, for probes of old manifests",
			into:  func(o *Options, _ Role) any { return &o.raw.mode },
		},
	}
}

func livenessFlags() []Flag {
	of := with(Liveness)
	return []Flag{
		{
			Name: "probe-timeout", Of: of, Default: "3s", Usage: "time limit of a probe, with the connection",
			into: func(o *Options, _ Role) any { return &o.Liveness.Timeout },
		},
		{
			Name: "health-port", Of: of, Default: "9808", Usage: "port of /healthz; --http-endpoint is newer",
			into: func(o *Options, _ Role) any { return &o.raw.livenessPort },
		},
	}
}
