package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/hosting/driverhost"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/volume"
)

// Drivers runs the CSI drivers that files describe until ctx ends. Their programs live on then. An error is only
// logged, so that the other parts of the process keep running.
func Drivers(ctx context.Context, o options.DriversOptions) error {
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

func runDrivers(ctx context.Context, o options.DriversOptions) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("path of this program: %w", err)
	}
	events := kube.NewNodeRecorder(ctx, o.Client, "node", o.Node)
	d := &drivers{DriversOptions: o, events: events, notRun: map[string]string{}}
	go func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.writeNotes(ctx)
	}()
	host := driverhost.Options{
		Files: driverfile.Dir(o.FilesDir), RootDir: o.RootDir, Node: o.Node, Gate: []string{self, options.GateVerb},
		Controllers: o.Controllers, Secret: d.secret, Failed: func(about string, err error) { d.failed(ctx, about, err) },
		Mended: func(about string) { d.note(ctx, about, nil) },
		Dial: append(slices.Clone(o.Dial), csi.WithCallLog(csi.NewCallLog(o.Log)),
			csi.WithHold(func(ctx context.Context) error { return kube.CheckHeld(ctx, o.Client) })),
		Log: o.Log,
	}
	if o.API.Host != "" {
		host.Identify = d.identify
	}
	if o.Objects {
		host.Reached = d.ensureObject
	}
	return driverhost.Run(ctx, host)
}

// drivers is what the drivers of a host need of the API.
type drivers struct {
	options.DriversOptions
	events *kube.Recorder

	// mu guards notRun, and serialises its writes.
	mu sync.Mutex
	// notRun says why drivers do not run, by name.
	notRun map[string]string
}

// secret returns a value of a Secret; driverhost.ErrNoValue is the error if there is none.
func (d *drivers) secret(ctx context.Context, namespace, name, key string) (string, error) {
	s, err := d.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("secret %s/%s %w", namespace, name, driverhost.ErrNoValue)
	}
	if err != nil {
		return "", fmt.Errorf("secret %s/%s: %w", namespace, name, err)
	}
	value, ok := s.Data[key]
	if !ok {
		return "", fmt.Errorf("key %s of secret %s/%s %w", key, namespace, name, driverhost.ErrNoValue)
	}
	return string(value), nil
}

// tokenLife is how long a token of a driver's service account is valid.
const tokenLife = time.Hour

// identify returns an identity of a service account, which ends with the Node.
func (d *drivers) identify(ctx context.Context, namespace, name string) (driverhost.Identity, error) {
	var none driverhost.Identity
	node, err := d.ownNode(ctx)
	if err != nil {
		return none, fmt.Errorf("node %s, to which its token is bound: %w", d.Node, err)
	}
	life := int64(tokenLife.Seconds())
	r, err := d.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &life,
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				Kind: "Node", APIVersion: "v1", Name: node.Name, UID: node.UID,
			},
		},
	}, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		return none, errors.New("it does not exist: create it and its roles with 'volplane apply'")
	}
	if err != nil {
		return none, fmt.Errorf("its token: %w", err)
	}
	return driverhost.Identity{
		Host: d.API.Host, Port: d.API.Port, CA: d.API.CA,
		Token: r.Status.Token, Expires: r.Status.ExpirationTimestamp.Time,
	}, nil
}

// ownNode returns the Node of this host, for which it waits at the first start.
func (d *drivers) ownNode(ctx context.Context) (node *corev1.Node, err error) {
	const pause, most = 200 * time.Millisecond, 20 * time.Second
	_ = wait.PollUntilContextTimeout(ctx, pause, most, true, func(ctx context.Context) (bool, error) {
		node, err = d.Client.CoreV1().Nodes().Get(ctx, d.Node, metav1.GetOptions{})
		return !apierrors.IsNotFound(err), nil
	})
	return node, err
}

// ensureObject makes the CSIDriver of a driver that has none, from what its file and the driver say. Changes of users
// are kept.
func (d *drivers) ensureObject(ctx context.Context, file driverfile.Driver, said *csi.Driver) {
	all := d.Client.StorageV1().CSIDrivers()
	if _, err := all.Get(ctx, said.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return
	}
	_, err := all.Create(ctx, file.CSIDriver(said.Controller), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
		d.Log.Warn("the CSIDriver of a driver cannot be created", "driver", said.Name, "err", err)
	}
}

// driverOf returns the driver that a file, or what a host of drivers names, is about; empty if that is not known.
func driverOf(about string) string {
	name, is := strings.CutPrefix(about, "driver ")
	if !is {
		name = driverfile.NameOf(about)
	}
	if csi.CheckName(name) != nil {
		return ""
	}
	return name
}

// note writes to the Node why the program of a driver does not run; nil removes that.
func (d *drivers) note(ctx context.Context, about string, cause error) {
	name := driverOf(about)
	if name == "" {
		return // only the event tells of it
	}
	const most = 900
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.notRun[name]
	if delete(d.notRun, name); cause != nil {
		d.notRun[name] = fmt.Sprintf("%.*s", most, cause)
	}
	if d.notRun[name] != before {
		d.writeNotes(ctx)
	}
}

// writeNotes writes all of notRun to the Node, also for what an earlier process has written; mu is held.
func (d *drivers) writeNotes(ctx context.Context) {
	text := any(nil)
	if len(d.notRun) > 0 {
		// Marshal cannot fail for texts.
		all, _ := json.Marshal(d.notRun)
		text = string(all)
	}
	_, err := d.ownNode(ctx)
	if err == nil {
		body, _ := json.Marshal(map[string]any{"metadata": map[string]any{
			"annotations": map[string]any{volume.AnnNotRun: text},
		}})
		_, err = d.Client.CoreV1().Nodes().Patch(ctx, d.Node, types.MergePatchType, body, metav1.PatchOptions{})
	}
	if err != nil && ctx.Err() == nil {
		d.Log.Warn("the drivers that do not run cannot be reported to the node", "node", d.Node, "err", err)
	}
}

// failed records at the Node why a driver cannot be used.
func (d *drivers) failed(ctx context.Context, about string, cause error) {
	d.note(ctx, about, cause)
	node, err := d.Client.CoreV1().Nodes().Get(ctx, d.Node, metav1.GetOptions{})
	if err != nil {
		node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: d.Node}}
	}
	d.events.Warn(node, decide.NotRun(about, driverOf(about), cause.Error(), d.Node))
}
