package exchange

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/upstream"
)

// leftOut are upstream's metrics that volplane does not serve, by the beginning of their names, and why.
func leftOut() map[string]string {
	const (
		libraries = "of API servers' libraries, which upstream's resizer links and which count nothing there"
		counting  = "of Kubernetes' library for metrics, about itself"
		details   = "a hundred details of the Go runtime, which upstream's resizer alone serves"
		plugins   = "of plugins for credentials, of which a Pod has none"
		transport = "of client-go's cache of connections"
		sizes     = "sizes of requests and answers, of which nobody decides anything, and to count them costs memory"
	)
	return map[string]string{
		"aggregator_": libraries, "apiserver_": libraries, "cardinality_enforcement_": counting,
		"disabled_metrics_total": counting, "hidden_metrics_total": counting, "registered_metrics_total": counting,
		"go_": details, "rest_client_exec_plugin_": plugins, "rest_client_transport_": transport,
		"rest_client_rate_limiter_duration_seconds": "the server's flow control is obeyed, and nothing waits in the client",
		"rest_client_request_size_bytes":            sizes, "rest_client_response_size_bytes": sizes,
	}
}

// TestMetricsAreUpstreams: after the same life of a volume, volplane's controllers serve the metrics that upstream's
// sidecars serve, under the same names, with the same types, labels, help and buckets. A list has exactly the
// omissions.
func TestMetricsAreUpstreams(t *testing.T) {
	t.Setenv("NAMESPACE", "default") // required by csi-provisioner
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	theirs := measuredLife(ctx, t, "theirs", theirSidecars)
	ours := measuredLife(ctx, t, "ours", ourSidecar)
	reasons, used := leftOut(), map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		mine, ok := ours[name]
		if ok {
			got, want := described(mine), described(theirs[name])
			if strings.HasPrefix(name, "process_") {
				// Upstream's programs serve two texts for them.
				want = strings.Replace(want, "[ALPHA] ", "", 1)
			}
			if got != want {
				t.Errorf("%s is\n%s\nand upstream's is\n%s", name, got, want)
			}
			continue
		}
		excused := false
		for begin := range reasons {
			if strings.HasPrefix(name, begin) {
				excused, used[begin] = true, true
			}
		}
		if !excused {
			t.Errorf("upstream's %s is not served: %s", name, described(theirs[name]))
		}
	}
	for begin, reason := range reasons {
		if !used[begin] {
			t.Errorf("upstream serves no %s, which is left out because: %s", begin, reason)
		}
	}
}

// described returns what is needed to draw a metric.
func described(f *dto.MetricFamily) string {
	labels, buckets := map[string]bool{}, ""
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = true
		}
		if h := m.GetHistogram(); h != nil {
			buckets = ""
			for _, b := range h.GetBucket() {
				buckets += fmt.Sprint(" ", b.GetUpperBound())
			}
		}
	}
	return fmt.Sprintf("%s %v%s: %s", f.GetType(), slices.Sorted(maps.Keys(labels)), buckets, f.GetHelp())
}

// measuredLife starts sidecars, plays the life of a volume with them, and returns their metrics.
func measuredLife(
	ctx context.Context, t *testing.T, name string, start func(*testing.T, differential.Side, *csitest.Driver) []string,
) map[string]*dto.MetricFamily {
	t.Helper()
	s := differential.NewSide(t, name, differential.Topic{})
	driver, _ := upstream.StartDriver(t, func(c *csitest.Config) {
		c.Controller.Snapshot, c.Controller.ListSnapshots = true, true
	})
	s.Ours(t, csi.NewSet(), "binder", "protection")
	addresses := start(t, s, driver)
	playMeasured(ctx, t, s, driver)
	out := map[string]*dto.MetricFamily{}
	for _, at := range addresses {
		upstream.Eventually(ctx, t, func() string { return scrape(ctx, s, at, out) })
	}
	return out
}

// scrape adds the metrics of an address.
func scrape(ctx context.Context, s differential.Side, at string, to map[string]*dto.MetricFamily) (problem string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/metrics", nil)
	if err != nil {
		return err.Error()
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	all, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil {
		return fmt.Sprintf("%s: %v", at, err)
	}
	for name, f := range all {
		if known := to[name]; known != nil {
			f.Metric = append(f.Metric, known.GetMetric()...)
		}
		to[name] = f
	}
	return ""
}

// theirSidecars runs upstream's five programs.
func theirSidecars(t *testing.T, s differential.Side, driver *csitest.Driver) []string {
	var addresses []string
	for _, one := range [][]string{
		{"csi-provisioner", "--enable-capacity", "--capacity-ownerref-level=-1", "--capacity-poll-interval=1s"},
		{"csi-attacher"},
		{"csi-resizer"},
		{"csi-snapshotter"},
		{"snapshot-controller"},
	} {
		at := plane.FreeAddress("127.0.0.1")
		args := append(upstream.Leading(one[1:]...), "--http-endpoint="+at, "--leader-election",
			"--leader-election-namespace=default")
		if one[0] != "snapshot-controller" {
			args = append(args, "--csi-address="+driver.Socket)
		}
		s.Run(t, one[0], args...)
		addresses = append(addresses, at)
	}
	return addresses
}

// ourSidecar runs all that the five programs do in one.
func ourSidecar(t *testing.T, s differential.Side, driver *csitest.Driver) []string {
	at := plane.FreeAddress("127.0.0.1")
	ctx, cancel := context.WithCancel(context.Background())
	ended, log := make(chan error, 1), &upstream.LastWords{}
	go func() {
		ended <- app.Controllers(ctx, options.ControllersOptions{
			Config: s.Server.AdminConfig(), Version: "test", Log: slog.New(slog.NewTextHandler(log, nil)),
			ControllersOptions: sidecar.ControllersOptions{
				Roles: app.ClusterControllers(), Socket: driver.Socket, Namespace: "default", Elects: true,
				Term:    sidecar.Term{Duration: 12 * time.Second, Deadline: 10 * time.Second, Retry: time.Second / 2},
				Choices: sidecar.Choices{CapacityPoll: time.Second},
				HTTP:    []sidecar.HTTPOptions{{Address: at, LeaderHealth: true}},
			},
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("volplane ended: %v", err)
		}
		if t.Failed() {
			t.Logf("volplane said:\n%s", log)
		}
	})
	return []string{at}
}

// playMeasured creates, attaches, snapshots, expands, detaches and deletes a volume.
func playMeasured(ctx context.Context, t *testing.T, s differential.Side, driver *csitest.Driver) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.MakeNode(ctx, "n1", "node-1"))
	upstream.Eventually(ctx, t, func() string {
		// Custom resources are served a moment after others.
		err := s.MakeClass(ctx, differential.SnapshotClass{Name: "shots", Driver: differential.DriverName, Policy: "Delete"})
		return missing(err == nil, fmt.Sprint(err))
	})
	_, err := s.Client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: differential.DriverName, AllowVolumeExpansion: ptr.To(true),
	}, metav1.CreateOptions{})
	must(err)
	claims := s.Client.CoreV1().PersistentVolumeClaims("default")
	_, err = claims.Create(ctx, upstream.ClaimOf("c", "fast"), metav1.CreateOptions{})
	must(err)
	var claim *corev1.PersistentVolumeClaim
	upstream.Eventually(ctx, t, func() string {
		claim, err = claims.Get(ctx, "c", metav1.GetOptions{})
		must(err)
		return missing(claim.Status.Phase == corev1.ClaimBound, "the claim is not bound")
	})
	attachAndDetach(ctx, t, s, claim.Spec.VolumeName)
	snapshotOf(ctx, t, s, "c")
	_, err = claims.Patch(ctx, "c", types.MergePatchType,
		[]byte(`{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`), metav1.PatchOptions{})
	must(err)
	upstream.Eventually(ctx, t, func() string {
		return missing(slices.Contains(driver.Methods(), "ControllerExpandVolume"), "it is not expanded")
	})
	// Upstream counts failed deletions only once there is one.
	driver.OnCall("DeleteVolume", func(n int, _ any) (a csitest.Action) {
		if n == 1 {
			a.Err = status.Error(codes.Internal, "not yet")
		}
		return a
	})
	must(claims.Delete(ctx, "c", metav1.DeleteOptions{}))
	upstream.Eventually(ctx, t, func() string {
		all, err := s.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		must(err)
		return missing(len(all.Items) == 0, "the volume is still there")
	})
}

func attachAndDetach(ctx context.Context, t *testing.T, s differential.Side, pv string) {
	t.Helper()
	attachments := s.Client.StorageV1().VolumeAttachments()
	_, err := attachments.Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: differential.DriverName, NodeName: "n1",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	upstream.Eventually(ctx, t, func() string {
		a, err := attachments.Get(ctx, "a", metav1.GetOptions{})
		return missing(err == nil && a.Status.Attached, "it is not attached")
	})
	if err := attachments.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	upstream.Eventually(ctx, t, func() string {
		_, err := attachments.Get(ctx, "a", metav1.GetOptions{})
		return missing(apierrors.IsNotFound(err), "it is not detached")
	})
}

func snapshotOf(ctx context.Context, t *testing.T, s differential.Side, claim string) {
	t.Helper()
	all := s.Dynamic.Resource(upstream.Snapshots()).Namespace("default")
	o := upstream.Object("VolumeSnapshot", "s", map[string]any{
		"volumeSnapshotClassName": "shots", "source": map[string]any{"persistentVolumeClaimName": claim},
	})
	if _, err := all.Create(ctx, o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	upstream.Eventually(ctx, t, func() string {
		o, err := all.Get(ctx, "s", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		made, err := upstream.Typed[upstream.SnapshotObject](o)
		return missing(err == nil && made.Status != nil && ptr.Deref(made.Status.ReadyToUse, false), "there is no snapshot")
	})
	if err := all.Delete(ctx, "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	upstream.Eventually(ctx, t, func() string {
		_, err := all.Get(ctx, "s", metav1.GetOptions{})
		return missing(apierrors.IsNotFound(err), "the snapshot is still there")
	})
}

// missing returns what is not yet so; "" if it is.
func missing(ok bool, what string) string {
	if ok {
		return ""
	}
	return what
}
