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

// snapshotMetadataFlags are those of the program that serves changed blocks. Those of TLS other than the files are of
// upstream's master.
func snapshotMetadataFlags() []Flag {
	of := with(SnapshotMetadata)
	const defaults = "those of Go if empty"
	return append([]Flag{
		flag("timeout", of, "1m0s", "time limit of each call of the driver whose answer is not a stream",
			func(o *Options) any { return &o.SnapshotMetadata.Timeout }),
		flag("port", of, "50051", "port of the service SnapshotMetadata",
			func(o *Options) any { return &o.SnapshotMetadata.Port }),
		flag("tls-cert", of, "", "`path` of the certificate of the service (default $TLS_CERT_PATH)",
			func(o *Options) any { return &o.SnapshotMetadata.Cert }),
		flag("tls-key", of, "", "`path` of the key of that certificate (default $TLS_KEY_PATH)",
			func(o *Options) any { return &o.SnapshotMetadata.Key }),
		flag("tls-min-version", of, "", "oldest `version` of TLS: VersionTLS12 or VersionTLS13 (default VersionTLS12)",
			func(o *Options) any { return &o.SnapshotMetadata.MinVersion }),
		flag("tls-cipher-suites", of, "", "cipher `suites` of TLS 1.2, separated by commas; "+defaults,
			func(o *Options) any { return &o.SnapshotMetadata.CipherSuites }),
		flag("tls-curve-preferences", of, "", "elliptic `curves`, separated by commas; "+defaults,
			func(o *Options) any { return &o.SnapshotMetadata.CurvePreferences }),
		flag("audience", of, "", "`audience` of the tokens of clients (default that of the driver's SnapshotMetadataService)",
			func(o *Options) any { return &o.SnapshotMetadata.Audience }),
		flag("max-streaming-duration-min", of, "10", "how many minutes a stream may take",
			func(o *Options) any { return &o.raw.streamMinutes }),
		flag("http-endpoint", of, ":8080", "`address` of metrics, and of health at /health",
			func(o *Options) any { return &o.raw.httpEndpoint }),
		flag("disable-metrics", of, "false", "serve health only",
			func(o *Options) any { return &o.raw.withoutMetrics }),
		ignored("legacy_stderr_threshold_behavior", of, boolean, "", "the log is written to standard error"),
	}, klogFlags(of)...)
}
