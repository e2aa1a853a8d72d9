package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	decide "volplane.dev/volplane/internal/decide/migrate"
	"volplane.dev/volplane/internal/flex/migrate"
	"volplane.dev/volplane/internal/testkit/seeds"
	"volplane.dev/volplane/internal/volume"
)

// death counts the writes of a process, and fails all of them from one on, as if the process were killed
// there.
type death struct {
	mu sync.Mutex
	// writes counts; at is the write at which it strikes, 0 never, and after
	// says that this one still gets through.
	writes, at int
	after      bool
	last       string
}

var errKilled = errors.New("killed")

func (d *death) wrap(next http.RoundTripper) http.RoundTripper { return &dying{d, next} }

type dying struct {
	*death
	next http.RoundTripper
}

func (d *dying) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		return d.next.RoundTrip(r)
	}
	d.mu.Lock()
	d.writes++
	n := d.writes
	if n == d.at {
		d.last = r.Method + " " + r.URL.Path
	}
	d.mu.Unlock()
	switch {
	case d.at == 0 || n < d.at:
		return d.next.RoundTrip(r)
	case n == d.at && d.after:
		if resp, err := d.next.RoundTrip(r); err == nil {
			_ = resp.Body.Close()
		}
	}
	return nil, errKilled
}

// migration returns a migration that is killed as d says.
func (p *plane) migration(d *death) *migrate.Migration {
	p.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.dir, "admin.kubeconfig"))
	p.must(err)
	config.QPS = -1
	config.Wrap(d.wrap)
	client, err := kubernetes.NewForConfig(config)
	p.must(err)
	return &migrate.Migration{Client: client}
}

// flexPair creates a bound FlexVolume with its claim, and the CSIDriver object.
func (p *plane) flexPair(name string) {
	p.t.Helper()
	driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "lofs.example.com"}}
	if _, err := p.client.StorageV1().CSIDrivers().Create(p.ctx, driver,
		metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		p.must(err)
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	_, err := p.client.CoreV1().PersistentVolumes().Create(p.ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kept": "yes"}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "default", Name: name},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{FlexVolume: flexSource(name)},
		},
	}, metav1.CreateOptions{})
	p.must(err)
	_, err = p.client.CoreV1().PersistentVolumeClaims("default").Create(p.ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kept": "yes"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(""), VolumeName: name,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	p.must(err)
	p.eventually(func() string { return p.flexState(name, true) })
}

// flexState says how the pair differs from one that is bound and, as requested, a FlexVolume or a volume of
// the bridge.
func (p *plane) flexState(name string, flex bool) string {
	pv, err := p.client.CoreV1().PersistentVolumes().Get(p.ctx, name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	claim, err := p.client.CoreV1().PersistentVolumeClaims("default").Get(p.ctx, name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	if pv.Status.Phase != corev1.VolumeBound || claim.Status.Phase != corev1.ClaimBound ||
		pv.Spec.ClaimRef.UID != claim.UID {
		return fmt.Sprintf("volume %s, claim %s", pv.Status.Phase, claim.Status.Phase)
	}
	want := corev1.PersistentVolumeSource{FlexVolume: flexSource(name)}
	if !flex {
		want = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: "lofs.example.com", VolumeHandle: name, FSType: "ext4", VolumeAttributes: map[string]string{"file": name},
			NodePublishSecretRef: &corev1.SecretReference{Name: "s", Namespace: "default"},
		}}
	}
	type kept struct {
		Source          corev1.PersistentVolumeSource
		Policy          corev1.PersistentVolumeReclaimPolicy
		OnVolume, Label string
	}
	return cmp.Diff(kept{want, corev1.PersistentVolumeReclaimDelete, "yes", "yes"},
		kept{pv.Spec.PersistentVolumeSource, pv.Spec.PersistentVolumeReclaimPolicy, pv.Labels["kept"], claim.Labels["kept"]})
}

func flexSource(name string) *corev1.FlexPersistentVolumeSource {
	return &corev1.FlexPersistentVolumeSource{
		Driver: "example.com/lofs", FSType: "ext4", Options: map[string]string{"file": name},
		SecretRef: &corev1.SecretReference{Name: "s"},
	}
}

func (p *plane) migrationJournals() int {
	p.t.Helper()
	list, err := p.client.CoreV1().ConfigMaps(volume.NamespaceSystem).List(p.ctx,
		metav1.ListOptions{LabelSelector: volume.LabelMigration})
	p.must(err)
	return len(list.Items)
}

// TestFlexMigrateKilled kills a migration, in both directions, before and after each of its writes; `make test` plays
// a random part of them. Another process continues it or reverts it. In the end volume and claim are complete, and
// nothing is left over. The number of writes is known only at the end, because a conflict causes more.
func TestFlexMigrateKilled(t *testing.T) {
	const least, most = 7, 30
	p := newPlane(t)
	ctx, cancel := context.WithTimeout(p.ctx, 10*time.Minute)
	defer cancel()
	t.Run("at", func(t *testing.T) {
		for life := range 8 {
			back, turn, after := life&1 != 0, life&2 != 0, life&4 != 0
			t.Run(fmt.Sprintf("back-%v-turn-%v-after-%v", back, turn, after), func(t *testing.T) {
				t.Parallel()
				own := *p
				own.t = t
				at, part := 1, seeds.Part(t)
				for ; at < most; at++ {
					// The least number of writes is always tried, so that fewer are noticed.
					if (part(at) || at == least) && !own.migrateKilled(ctx, back, turn, &death{at: at, after: after}) {
						break
					}
				}
				if at <= least || at == most {
					t.Errorf("killed at %d writes, want from %d to %d", at-1, least, most-2)
				}
			})
		}
	})
	if n := p.migrationJournals(); n != 0 {
		t.Errorf("%d journals are left", n)
	}
}

// migrateKilled migrates a volume or reverts that, is killed, and continues or reverts. It returns whether
// there was a write at which it was killed.
func (p *plane) migrateKilled(ctx context.Context, back, turn bool, d *death) bool {
	p.t.Helper()
	name := fmt.Sprintf("%s-%d", strings.ToLower(filepath.Base(p.t.Name())), d.at)
	p.flexPair(name)
	run := func(d *death, back bool) error {
		_, err := p.migration(d).Run(ctx, name, back)
		return err
	}
	if back {
		p.must(run(&death{}, false))
	}
	goal := back
	if err := run(d, back); d.last != "" {
		goal = back != turn
		if err == nil {
			p.t.Errorf("killed at %s, and done nevertheless", d.last)
		}
		if err := run(&death{}, goal); err != nil {
			p.t.Fatalf("killed at %s, then: %v", d.last, err)
		}
	} else if err != nil {
		p.t.Fatalf("not killed at %d: %v", d.at, err)
	}
	p.eventually(func() string {
		if s := p.flexState(name, goal); s != "" {
			return fmt.Sprintf("killed at %q: %s", d.last, s)
		}
		return ""
	})
	// All ways end where they began, for the count of journals.
	p.must(run(&death{}, true))
	return d.last != ""
}

// TestFlexMigrateInUse: a volume that a Pod uses is refused, and a Pod that is created between the check
// and the deletion is waited for.
func TestFlexMigrateInUse(t *testing.T) {
	p := newPlane(t)
	p.flexPair("used")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "user", Namespace: "default"},
		Spec: corev1.PodSpec{
			NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "none"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "used"},
			}}},
		},
	}
	makePod := func() {
		_, err := p.client.CoreV1().Pods("default").Create(p.ctx, pod.DeepCopy(), metav1.CreateOptions{})
		p.must(err)
	}
	endPod := func() {
		p.must(p.client.CoreV1().Pods("default").Delete(p.ctx, "user",
			metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	}
	makePod()
	m := p.migration(&death{})
	if _, err := m.Run(p.ctx, "used", false); !errors.Is(err, migrate.ErrRefused) ||
		!strings.Contains(err.Error(), "pod user") {
		t.Fatalf("a volume in use: %v", err)
	}
	if n := p.migrationJournals(); n != 0 {
		t.Fatal("something was saved of what was refused")
	}
	endPod()
	waits := make(chan struct{}, 16)
	m.Report = func(_ string, s decide.Step) {
		switch {
		case s.Verb == decide.DeleteClaim:
			makePod()
		case s.Verb == decide.Wait && strings.Contains(s.Because.Message, "pod user"):
			waits <- struct{}{}
		}
	}
	ended := make(chan error, 1)
	go func() {
		err := migrate.ErrRefused
		// Others may write to the claim because a Pod uses it, before it is deleted: then the move is refused again.
		for errors.Is(err, migrate.ErrRefused) && p.ctx.Err() == nil {
			if _, err = m.Run(p.ctx, "used", false); errors.Is(err, migrate.ErrRefused) {
				endPod()
			}
		}
		ended <- err
	}()
	select {
	case <-waits:
	case err := <-ended:
		t.Fatalf("the Pod that came in between was not waited for: %v", err)
	}
	endPod()
	p.must(<-ended)
	p.eventually(func() string { return p.flexState("used", false) })
}
