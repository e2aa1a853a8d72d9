package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/test/internal/kubelet"
)

// mounter is a peer that mounts on a node, with the number of mounts.
type mounter struct {
	name string
	// free says that the driver needs no attach.
	free bool
	// oneByOne is how many Pods come one after the other.
	oneByOne int
	run      func(context.Context, *ward) error

	median, ninetyNinth, storm time.Duration
}

// measureMounting has volplane's node agent and a kubelet mount attached volumes: one Pod after the other, many in
// parallel, and while a call of the driver hangs.
func measureMounting(ctx context.Context, figures map[string]any, pods int, hang time.Duration) error {
	peers := []*mounter{
		{name: "volplane", oneByOne: 200, run: runAgent},
		{name: "kubelet", oneByOne: aFew / 2, run: runKubelet},
		{name: "volplane_no_attach", free: true, oneByOne: 200, run: runAgent},
		{name: "kubelet_no_attach", free: true, oneByOne: aFew, run: runKubelet},
	}
	for _, p := range peers {
		if err := p.measure(ctx, figures, pods, hang); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		figures["mounted_ms_median_"+p.name], figures["mounted_ms_p99_"+p.name] = milliseconds(p.median),
			milliseconds(p.ninetyNinth)
		figures["all_mounted_s_"+p.name] = p.storm.Seconds()
	}
	for i := 0; i < len(peers); i += 2 {
		ours, theirs := peers[i], peers[i+1]
		figures["mounted_times_"+theirs.name] = theirs.median.Seconds() / ours.median.Seconds()
		figures["all_mounted_times_"+theirs.name] = theirs.storm.Seconds() / ours.storm.Seconds()
	}
	figures["mounted_at_once"] = pods
	return nil
}

func (p *mounter) measure(ctx context.Context, figures map[string]any, pods int, hang time.Duration) (err error) {
	w, ctx, err := newWard(ctx, p.free)
	if w != nil {
		defer func() { err = errors.Join(err, w.end()) }()
	}
	if err != nil {
		return err
	}
	if err := p.run(ctx, w); err != nil {
		return err
	}
	if err := w.registered(ctx); err != nil {
		return err
	}
	// The first one shows that the peer is ready, and does not count.
	times, err := w.oneByOne(ctx, p.oneByOne+1)
	if err != nil {
		return err
	}
	times = times[1:]
	slices.Sort(times)
	p.median, p.ninetyNinth = times[len(times)/2], times[len(times)*99/100]
	if p.name == "volplane" {
		if err := w.besideHanging(ctx, figures, hang); err != nil {
			return err
		}
	}
	if p.storm, err = w.allAtOnce(ctx, pods); err != nil || p.free {
		return err
	}
	return p.restart(ctx, w, figures)
}

// restart restarts the peer with all its mounts, and measures the time until one more Pod is mounted, and
// the calls of the driver for the others.
func (p *mounter) restart(ctx context.Context, w *ward, figures map[string]any) error {
	name, err := w.nextVolumes(ctx, 1)
	if err != nil {
		return err
	}
	if err := w.attached(ctx, name...); err != nil {
		return err
	}
	err = w.stop()
	w.stop = func() error { return nil }
	if err != nil {
		return err
	}
	calls, began := w.calls.Load(), time.Now()
	if err := p.run(ctx, w); err != nil {
		return err
	}
	if err := w.podFor(ctx, name[0]); err != nil {
		return err
	}
	if err := w.sights.wait(ctx, func() bool { return !w.sights.told[name[0]].IsZero() }); err != nil {
		return err
	}
	figures["restart_to_mounted_s_"+p.name] = time.Since(began).Seconds()
	time.Sleep(settling)
	// The one more is staged and published.
	figures["restart_calls_"+p.name] = w.calls.Load() - calls - 2
	return nil
}

// runAgent runs volplane's node agent, which reaches the API server over the network, as a kubelet does.
func runAgent(ctx context.Context, w *ward) error {
	config, err := clientcmd.BuildConfigFromFlags("", w.server.AdminKubeconfig())
	if err != nil {
		return err
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- app.Node(running, options.NodeOptions{
			Name: ward1, RootDir: w.root, Config: config, Drivers: csi.NewSet(), Log: slog.New(slog.DiscardHandler),
		})
	}()
	w.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	return nil
}

// runKubelet runs a kubelet with its defaults, except for the number of Pods.
func runKubelet(_ context.Context, w *ward) error {
	k, err := kubelet.Start(kubelet.Options{
		Dir: filepath.Dir(w.root), Node: ward1, Kubeconfig: w.server.AdminKubeconfig(), Tuning: "maxPods: 2000",
	})
	if err != nil {
		return err
	}
	w.stop = k.End
	return nil
}

// besideHanging measures Pods while the driver does not answer for the volume of another Pod, and before
// and after that.
func (w *ward) besideHanging(ctx context.Context, figures map[string]any, hang time.Duration) error {
	// They should be done by the time the call is answered.
	n := int(hang / (600 * time.Millisecond))
	before, err := w.oneByOne(ctx, n)
	if err != nil {
		return err
	}
	name, err := w.nextVolumes(ctx, 1)
	if err != nil {
		return err
	}
	w.hanging.Store(&hanging{volume: name[0], until: time.Now().Add(hang)})
	if err := w.podFor(ctx, name[0]); err != nil {
		return err
	}
	if err := w.attached(ctx, name...); err != nil {
		return err
	}
	during, err := w.oneByOne(ctx, n)
	if err != nil {
		return err
	}
	if h := w.hanging.Load(); time.Now().After(h.until) || !h.asked.Load() {
		return fmt.Errorf("the call did not hang all the time: asked %v", h.asked.Load())
	}
	if err := w.sights.wait(ctx, func() bool { return !w.sights.told[name[0]].IsZero() }); err != nil {
		return err
	}
	if err := w.unuse(ctx, name[0]); err != nil {
		return err
	}
	after, err := w.oneByOne(ctx, n)
	if err != nil {
		return err
	}
	without, beside := median(slices.Concat(before, after)), median(during)
	figures["mounted_ms_without_hanging_call"], figures["mounted_ms_beside_hanging_call"] = milliseconds(without),
		milliseconds(beside)
	figures["hanging_call_makes_percent"] = 100 * (beside.Seconds()/without.Seconds() - 1)
	return nil
}

// describeDriver creates a CSIDriver that needs no attach.
func (w *ward) describeDriver(ctx context.Context) error {
	d := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
	}
	_, err := w.client.StorageV1().CSIDrivers().Create(ctx, d, metav1.CreateOptions{})
	return err
}

// newRoot creates the directory of a node.
func newRoot() (string, error) {
	// Short: the name of a unix socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "node-")
	return filepath.Join(dir, "kubelet"), err
}
