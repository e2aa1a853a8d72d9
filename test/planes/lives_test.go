package planes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/testkit/seeds"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/array"
	"volplane.dev/volplane/test/internal/plane"
)

const (
	// fewLives is how many lives `make test` plays at least, and atATime how many at the same time.
	fewLives, atATime = 100, 24
	// perRound is the number of disturbances in a round, after which everything is compared.
	perRound = 2
	// askLimit is how long a life waits for an API server before it tries the next one.
	askLimit = 5 * time.Second
	// anyPlane is the client that asks another API server when one does not respond.
	anyPlane = "any"
)

// TestLives: three hosts with a control plane and a member of the etcd each. Control planes are killed, suspended and
// started with other clocks, members die, stall and are slow, and hosts do not reach each other, while claims are made,
// mounted, written, grown, snapshotted and deleted on all of them by any API server. The storage is each host's own, or
// an array that all of them reach. Whenever all is calm, the API, the drivers, the mounts and the pools agree: only the
// permanent volumes exist. These can be written at any time, and keep their mounts. Only one host at a time calls the
// array, the holder of the lease, and no volume is published to two.
func TestLives(t *testing.T) {
	t.Parallel()
	seed, want := seeds.First(t), seeds.Count(t, fewLives)
	t.Logf("it begins with SEED=%d", seed)
	names := []string{"n1", "n2", "n3"}
	h := newLivingHosts(t, names)
	stop := h.stay()
	before, err := h.leftovers(names[0])
	if err != nil {
		t.Fatal(err)
	}
	volumes := h.array.Volumes()
	random := rand.New(rand.NewPCG(seed, 0))
	for round := uint64(1); h.played.Load() < int64(want) && !t.Failed(); round++ {
		began := time.Now()
		h.round(seed, round, func() {
			for range perRound {
				h.disturb(random, names)
			}
		})
		undisturbed := time.Now()
		h.eventually("what is left besides what stays", func() error {
			if err := h.deleteLate(); err != nil {
				return err
			}
			err := h.onlyLeft(names[0], before)
			if now := h.array.Volumes(); !slices.Equal(now, volumes) {
				err = errors.Join(err, fmt.Errorf("the array has the volumes %v instead of %v", now, volumes))
			}
			return err
		})
		t.Logf("round %d of SEED=%d: %d lives after %v, and %v to compare", round, seed, h.played.Load(),
			undisturbed.Sub(began).Round(time.Second), time.Since(undisturbed).Round(time.Millisecond))
	}
	stop()
	h.end(volumes)
	t.Logf("played %d lives, SEED=%d; %d calls of the array with its lease, %d in which it could not be read",
		h.played.Load(), seed, h.held.Load(), h.unread.Load())
}

// end deletes the permanent volumes, and reports what went wrong at the array during the test.
func (h *livingHosts) end(volumes []string) {
	h.t.Helper()
	for _, id := range volumes {
		for _, name := range h.names {
			if written, refused := h.array.Counts(id, name); refused > 0 {
				h.t.Errorf("the array has refused %d writes of %s to %s, and accepted %d", refused, name, id, written)
			}
		}
	}
	for _, claim := range h.stays {
		h.delete(h.names[0], claim)
	}
	h.nothingLeft(h.names[0])
	for _, text := range h.array.Violations() {
		h.t.Error(text)
	}
	h.looking.Wait()
}

// livingHosts are hosts with an array.
type livingHosts struct {
	*controlPlanes
	array *array.Array
	names []string
	// config is that of a client of any API server.
	config *rest.Config
	// stays are the claims that stay mounted.
	stays []string
	// seen has the UIDs of all objects that lives have used.
	seen *sync.Map
	// looking counts the checks of callers of the array that are in progress.
	looking sync.WaitGroup
	// played counts the lives; held the calls of the array whose caller held the lease, and unread those for which the
	// lease could not be read.
	played, held, unread atomic.Int64
}

func newLivingHosts(t *testing.T, names []string) *livingHosts {
	t.Helper()
	h := &livingHosts{controlPlanes: newHosts(t, names...), names: names, seen: &sync.Map{}}
	h.array = array.New(h.dirOf("array"))
	var err error
	if h.config, err = clientcmd.BuildConfigFromFlags("", h.planes[names[0]].Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	h.config.QPS, h.config.Timeout = -1, askLimit
	reader, err := kubernetes.NewForConfig(h.asking(0))
	if err != nil {
		t.Fatal(err)
	}
	h.array.OnCall = func(ctx context.Context, host string) { h.called(ctx, reader, host) }
	t.Cleanup(h.looking.Wait)
	h.serve(h.array, names...)
	if _, err := plane.GrowingClass(t.Context(), h.clients[names[0]]); err != nil {
		t.Fatal(err)
	}
	return h
}

// called takes a moment, as a call of an array does, which makes calls of two hosts overlap, and makes mustHold check
// the caller.
func (h *livingHosts) called(ctx context.Context, client kubernetes.Interface, host string) {
	came := time.Now()
	h.looking.Go(func() { h.mustHold(client, host, came) })
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Millisecond):
	}
}

// mustHold reports a call of the array by a host when another one holds the lease for it, and held it before the call
// arrived.
func (h *livingHosts) mustHold(client kubernetes.Interface, host string, came time.Time) {
	leases, name := client.CoordinationV1().Leases(volume.NamespaceSystem), volume.ProvisionerLease(array.Driver)
	l, err := leases.Get(h.t.Context(), name, metav1.GetOptions{})
	for range h.names[1:] { // the client then tries another API server
		if err != nil {
			l, err = leases.Get(h.t.Context(), name, metav1.GetOptions{})
		}
	}
	if err != nil {
		h.unread.Add(1)
		return
	}
	if plane.Holds(l, host) {
		h.held.Add(1)
	} else if l.Spec.AcquireTime.Time.Before(came) {
		h.t.Errorf("%s calls the array at %v, and %q has the lease since %v", host, came,
			ptr.Deref(l.Spec.HolderIdentity, ""), l.Spec.AcquireTime)
	}
}

// arrayClaim returns a claim of the array.
func arrayClaim(name string) *corev1.PersistentVolumeClaim {
	c := plane.Claim(name, "8Mi")
	c.Spec.StorageClassName = ptr.To("array")
	return c
}

// stay mounts a volume of the pool and one of the array on each host, and has them written until stop is called, or
// until the test ends.
func (h *livingHosts) stay() (stop func()) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	var writers sync.WaitGroup
	for _, name := range h.names {
		for _, claim := range []*corev1.PersistentVolumeClaim{
			plane.Claim("stays-"+name, "8Mi"), arrayClaim("stays-array-" + name),
		} {
			h.stays = append(h.stays, claim.Name)
			path := h.use(name, claim, name)
			writers.Go(func() {
				if err := h.keepWriting(ctx, path); err != nil {
					h.t.Errorf("the mount of %s was interrupted at %v: %v", claim.Name, time.Now(), err)
				}
			})
		}
		writers.Go(func() { h.useArray(ctx, name) })
	}
	stop = func() { cancel(); writers.Wait() }
	h.t.Cleanup(stop)
	return stop
}

// writePause is the pause between two writes.
const writePause = 100 * time.Millisecond

// keepWriting writes a file again and again, always in the same mount.
func (h *livingHosts) keepWriting(ctx context.Context, path string) error {
	first, err := mountAt(path)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(writePause)
	defer ticker.Stop()
	for {
		if err := os.WriteFile(filepath.Join(path, "now"), []byte(time.Now().String()), 0o600); err != nil {
			return err
		}
		if now, err := mountAt(path); err != nil || now != first {
			return errors.Join(err, errors.New("it is another mount"))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// mountAt returns an identifier of the mount at a path, which no later mount reuses.
func mountAt(path string) (uint64, error) {
	var s unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID_UNIQUE, &s)
	return s.Mnt_id, err
}

// useArray makes a host write to all volumes of the array that are mounted there.
func (h *livingHosts) useArray(ctx context.Context, name string) {
	ticker := time.NewTicker(writePause)
	defer ticker.Stop()
	for ctx.Err() == nil {
		h.array.Write(name)
		<-ticker.C
	}
}

// round plays lives, several at the same time, until the disturbances are over.
func (h *livingHosts) round(seed, round uint64, disturb func()) {
	ctx, calm := context.WithCancel(h.t.Context())
	var lives sync.WaitGroup
	defer lives.Wait()
	defer calm()
	for i := range uint64(atATime) {
		lives.Go(func() {
			h.t.Run(fmt.Sprintf("%d-%d", round, i), func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, round*atATime+i))
				for n := 0; n == 0 || ctx.Err() == nil && !t.Failed(); n++ {
					h.live(t, random, fmt.Sprintf("life-%d-%d-%d", round, i, n))
					h.played.Add(1)
				}
			})
		})
	}
	disturb()
}
