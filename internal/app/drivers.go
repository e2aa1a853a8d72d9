package app

import (
	"context"
	"fmt"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/driverfile"
	"volplane.dev/volplane/internal/driverhost"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/program"
)

// Drivers runs the CSI drivers that files describe until ctx ends. Their programs live on then. An error is only
// logged, so that the other parts of the process keep running.
func Drivers(ctx context.Context, o program.DriversOptions) error {
	err := os.ErrPermission
	if os.Geteuid() == 0 {
		err = runDrivers(ctx, o)
	}
	if err != nil && ctx.Err() == nil {
		o.Log.Error("the drivers of this host are not run", "dir", o.FilesDir, "err", err)
	}
	<-ctx.Done()
	return nil
}

func runDrivers(ctx context.Context, o program.DriversOptions) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("path of this program: %w", err)
	}
	d := &drivers{DriversOptions: o, events: kube.NewRecorder(ctx, o.Client, "node")}
	host := driverhost.Options{
		Files: driverfile.Dir(o.FilesDir), RootDir: o.RootDir, Node: o.Node, Gate: []string{self, program.GateVerb},
		Controllers: o.Controllers, Secret: d.secret, Failed: func(about string, err error) { d.failed(ctx, about, err) },
		Dial: append(slices.Clone(o.Dial), csi.WithHold(func(ctx context.Context) error {
			return kube.CheckHeld(ctx, o.Client)
		})),
		Log: o.Log,
	}
	if o.Objects {
		host.Reached = d.ensureObject
	}
	return driverhost.Run(ctx, host)
}

// drivers is what the drivers of a host need of the API.
type drivers struct {
	program.DriversOptions
	events *kube.Recorder
}

// secret returns a value of a Secret.
func (d *drivers) secret(ctx context.Context, namespace, name, key string) (string, error) {
	s, err := d.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("secret %s/%s: %w", namespace, name, err)
	}
	value, ok := s.Data[key]
	if !ok {
		return "", fmt.Errorf("secret %s/%s has no key %s", namespace, name, key)
	}
	return string(value), nil
}

// ensureObject makes the CSIDriver of a driver that has none, from what it says of itself. Changes of users are kept.
func (d *drivers) ensureObject(ctx context.Context, said *csi.Driver) {
	all := d.Client.StorageV1().CSIDrivers()
	if _, err := all.Get(ctx, said.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return
	}
	_, err := all.Create(ctx, driverfile.CSIDriverOf(said.Name, said.Controller), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
		d.Log.Warn("the CSIDriver of a driver cannot be made", "driver", said.Name, "err", err)
	}
}

// failed records at the Node why a driver cannot be used.
func (d *drivers) failed(ctx context.Context, about string, cause error) {
	node, err := d.Client.CoreV1().Nodes().Get(ctx, d.Node, metav1.GetOptions{})
	if err != nil {
		node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: d.Node}}
	}
	d.events.Warn(node, decide.NotRun(about, cause.Error(), d.Node))
}
