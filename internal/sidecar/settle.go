package sidecar

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// settle turns the flags and the environment into the program's options.
func (o *Options) settle(r Role, changed func(string) bool, env func(string) string) error {
	var err error
	if r != SnapshotController {
		if o.Socket, err = socketPath(o.Socket); err != nil {
			return err
		}
	}
	if err := CheckLogFormat(o.LogFormat); err != nil {
		return err
	}
	switch r {
	case SnapshotMetadata:
		return o.settleSnapshotMetadata(env)
	case Registrar:
		return o.settleRegistrar(changed)
	case Liveness:
		return o.settleLiveness(changed)
	}
	return o.settleControllers(env)
}

// settleControllers is for a process of one controller or of several.
func (o *Options) settleControllers(env func(string) string) error {
	if o.raw.snapshotsOfNode && o.Elects && !o.raw.nodeDeployment {
		return errors.New("the snapshotter's --node-deployment cannot be together with --leader-election: each node takes " +
			"its own snapshots")
	}
	o.Namespace = cmp.Or(o.Namespace, env("POD_NAMESPACE"))
	o.ReconcileSync = cmp.Or(o.ReconcileSync, time.Minute)
	o.CapacityPoll = cmp.Or(o.CapacityPoll, time.Minute)
	if o.raw.resizerTimeout > 0 {
		o.Resizer.Timeout, o.Resizer.ModifyTimeout = o.raw.resizerTimeout, o.raw.resizerTimeout
	}
	o.limitOthers()
	if err := o.checkTimes(); err != nil {
		return err
	}
	if o.raw.capacity && !slices.Contains(o.Roles, "capacity") {
		o.Roles = append(o.Roles, "capacity")
	}
	if err := o.raw.gates.apply(o); err != nil {
		return err
	}
	if err := o.settleNode(env); err != nil {
		return err
	}
	o.settleOwner(env)
	return o.settleHTTP(o.Elects)
}

// limitOthers gives the time limit that all sidecars share to those without one of their own.
func (o *Options) limitOthers() {
	for _, r := range controllers() {
		p := o.pace(r)
		p.Timeout = cmp.Or(p.Timeout, o.raw.timeout)
	}
	o.Resizer.ModifyTimeout = cmp.Or(o.Resizer.ModifyTimeout, o.raw.timeout)
}

// checkTimes refuses times that make no sense.
func (o *Options) checkTimes() error {
	if o.Elects && (o.Term.Duration <= o.Term.Deadline || o.Term.Deadline <= o.Term.Retry) {
		return fmt.Errorf("the lease duration (%v) must be longer than the renew deadline (%v), and that longer than the "+
			"retry period (%v)", o.Term.Duration, o.Term.Deadline, o.Term.Retry)
	}
	for _, r := range electing() {
		p := o.pace(r)
		if p.Timeout < 0 || p.RetryStart < 0 || p.RetryMax < 0 {
			return fmt.Errorf("the time limit and the pauses of %s must not be negative", r)
		}
		if p.RetryMax > 0 && p.RetryStart > p.RetryMax {
			return fmt.Errorf("the first pause of %s (%v) is longer than the longest one (%v)", r, p.RetryStart, p.RetryMax)
		}
	}
	return nil
}

// settleNode is for a driver whose controller runs on each node.
func (o *Options) settleNode(env func(string) string) error {
	if !o.raw.nodeDeployment && !o.raw.snapshotsOfNode {
		return nil
	}
	node := env("NODE_NAME")
	if node == "" {
		return errors.New("--node-deployment needs the name of the node in $NODE_NAME: give it by the downward API")
	}
	if on := o.Provisioner.OnNode; on.BaseDelay < 0 || on.MaxDelay < 0 {
		return errors.New("the delays of --node-deployment must not be negative")
	}
	if o.raw.nodeDeployment {
		o.Provisioner.OnNode.Node = node
	}
	if o.raw.snapshotsOfNode {
		o.Snapshotter.Node = node
	}
	return nil
}

// settleOwner determines the namespace and the owner of capacities if the environment names the Pod.
func (o *Options) settleOwner(env func(string) string) {
	namespace, pod := cmp.Or(env("NAMESPACE"), env("POD_NAMESPACE")), env("POD_NAME")
	if !slices.Contains(o.Roles, "capacity") || namespace == "" {
		return
	}
	o.CapacityOwner = &CapacityOwner{Namespace: namespace, Pod: pod, Level: o.raw.ownerLevel}
	if pod == "" {
		o.CapacityOwner.Level = -1
	}
}

// settleHTTP determines the servers of metrics and health.
func (o *Options) settleHTTP(leaders bool) error {
	if o.raw.httpEndpoint != "" && o.raw.metricsAddress != "" {
		return errors.New("only one of --http-endpoint and --metrics-address can be given: the former serves metrics, too")
	}
	for _, address := range addresses(o.raw.httpEndpoint) {
		o.HTTP = append(o.HTTP, HTTPOptions{
			Address: address, MetricsPath: o.raw.metricsPath, LeaderHealth: leaders, Pprof: o.raw.pprof,
		})
	}
	for _, address := range addresses(o.raw.metricsAddress) {
		o.HTTP = append(o.HTTP, HTTPOptions{Address: address, Flag: "--metrics-address", MetricsPath: o.raw.metricsPath})
	}
	return nil
}

func addresses(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

func (o *Options) settleRegistrar(changed func(string) bool) error {
	o.Registrar.Socket, o.Registrar.Health, o.Registrar.Pprof = o.Socket, o.raw.httpEndpoint, o.raw.pprof
	switch o.raw.mode {
	case "":
	case "kubelet-registration-probe":
		o.ProbeOnly = true
		return nil
	default:
		return fmt.Errorf("--mode %q is unknown: the only one is kubelet-registration-probe", o.raw.mode)
	}
	if port := o.raw.healthPort; port != "" && port != "0" {
		if changed("http-endpoint") {
			return errors.New("only one of --http-endpoint and --health-port can be given")
		}
		o.Registrar.Health = ":" + port
	}
	return nil
}

func (o *Options) settleLiveness(changed func(string) bool) error {
	o.Liveness.Socket, o.Liveness.Address = o.Socket, ":"+o.raw.livenessPort
	if changed("http-endpoint") {
		if changed("health-port") {
			return errors.New("only one of --http-endpoint and --health-port can be given")
		}
		o.Liveness.Address = o.raw.httpEndpoint
	}
	if err := o.settleHTTP(false); err != nil {
		return err
	}
	o.Liveness.HTTP, o.HTTP = o.HTTP, nil
	return nil
}

func (o *Options) settleSnapshotMetadata(env func(string) string) error {
	m := &o.SnapshotMetadata
	m.Socket, m.StreamLimit = o.Socket, time.Duration(o.raw.streamMinutes)*time.Minute
	m.Cert, m.Key = cmp.Or(m.Cert, env("TLS_CERT_PATH")), cmp.Or(m.Key, env("TLS_KEY_PATH"))
	switch {
	case o.Version:
		return nil
	case m.Cert == "" || m.Key == "":
		return errors.New("--tls-cert and --tls-key are not both given: clients send tokens, and only over TLS")
	case m.Port < 1 || m.Port > 65535:
		return fmt.Errorf("--port %d is not a port", m.Port)
	case m.Timeout <= 0:
		return errors.New("--timeout must be longer than 0")
	case m.StreamLimit <= 0:
		// As upstream's program does.
		m.StreamLimit = 10 * time.Minute
	}
	for _, address := range addresses(o.raw.httpEndpoint) {
		m.HTTP = append(m.HTTP, HTTPOptions{
			Address: address, MetricsPath: o.raw.metricsPath, Health: true, WithoutMetrics: o.raw.withoutMetrics,
		})
	}
	return nil
}

// socketPath returns the path of a driver's socket, which may be written as a URL.
func socketPath(text string) (string, error) {
	scheme, rest, found := strings.Cut(text, ":")
	switch {
	case text == "":
		return "", errors.New("--csi-address is empty: give the path of the driver's socket")
	case !found || strings.Contains(scheme, "/"):
		return text, nil
	case scheme == "unix":
		return strings.TrimPrefix(rest, "//"), nil
	}
	return "", fmt.Errorf("--csi-address %s is not a socket of this host: give a path, or unix://PATH", text)
}
