package sidecar

func registrarFlags() []Flag {
	of := with(Registrar)
	return []Flag{
		flag("kubelet-registration-path", of, "", "`path` of the same socket as the kubelet sees it",
			func(o *Options) any { return &o.Registrar.Endpoint }),
		flag("plugin-registration-path", of, "/registration", "`directory` of the kubelet's registration sockets",
			func(o *Options) any { return &o.Registrar.Dir }),
		flag("timeout", of, "1s", "time limit of a call of the driver",
			func(o *Options) any { return &o.Registrar.Timeout }),
		flag("health-port", of, "0", "port of /healthz; --http-endpoint is newer",
			func(o *Options) any { return &o.raw.healthPort }),
		flag("mode", of, "", "kubelet-registration-probe exits immediately, for probes of old manifests",
			func(o *Options) any { return &o.raw.mode }),
	}
}

func livenessFlags() []Flag {
	of := with(Liveness)
	return []Flag{
		flag("probe-timeout", of, "3s", "time limit of a probe, with the connection",
			func(o *Options) any { return &o.Liveness.Timeout }),
		flag("health-port", of, "9808", "port of /healthz; --http-endpoint is newer",
			func(o *Options) any { return &o.raw.livenessPort }),
	}
}
