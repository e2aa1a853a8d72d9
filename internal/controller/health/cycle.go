package health

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/health"
	"volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/kube"
)

const (
	// maxPages is how many pages of a list are read.
	maxPages = 1000
	// maxReports is how many problems of one volume are read.
	maxReports = 100
	// listLimit bounds a list.
	listLimit = time.Minute
)

var errEndless = errors.New("the list does not end")

// cycle is one round of questions to a driver.
type cycle struct {
	*monitor
	driver *csi.Driver
	calls
	// silent says that the driver does not answer.
	silent atomic.Bool
	// eventsOnly means that claims cannot hold the health: the API server drops the field, or refuses the write for lack
	// of a right.
	eventsOnly bool
	// secrets holds the Secrets that were read in this cycle.
	secrets map[corev1.SecretReference]secret
}

// secret is what was read of a Secret.
type secret struct {
	data map[string]string
	err  error
}

// list returns what the driver's list reports about volumes, by their handles, and whether that is all. Nothing is
// returned of an incomplete list, because more about the same volume may have followed.
func (c *cycle) list(
	ctx context.Context, volumes []*corev1.PersistentVolume,
) (told map[string][]health.Report, complete bool) {
	told = map[string][]health.Report{}
	if c.page == nil || len(volumes) == 0 {
		return told, false
	}
	ours := map[string]bool{}
	for _, v := range volumes {
		ours[v.Spec.CSI.VolumeHandle] = true
	}
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	if err := c.pages(ctx, func(e entry) {
		if ours[e.id] {
			all := append(told[e.id], e.reports...)
			told[e.id] = all[:min(len(all), maxReports)]
		}
	}); err != nil {
		if !csi.IsAnswer(err) && ctx.Err() == nil {
			c.Env.Log.Warn("driver does not report the health of its volumes", "driver", c.driver.Name, "err", err)
		}
		return map[string][]health.Report{}, false
	}
	return told, true
}

// pages calls visit for each entry of the driver's list.
func (c *cycle) pages(ctx context.Context, visit func(entry)) error {
	token := ""
	for range maxPages {
		entries, next, err := c.readPage(ctx, token)
		if err != nil {
			return fmt.Errorf("list health of volumes: %s", csi.Describe(err))
		}
		for _, e := range entries {
			visit(e)
		}
		if next == "" {
			return nil
		}
		if next == token {
			return errEndless
		}
		token = next
	}
	return errEndless
}

// readPage reads a page within the time limit of a call.
func (c *cycle) readPage(ctx context.Context, token string) (entries []entry, next string, err error) {
	ctx, cancel := c.limited(ctx)
	defer cancel()
	return c.page(ctx, token)
}

// limited returns the context of one call.
func (c *cycle) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.options.Timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.options.Timeout)
}

// askEach queries each volume separately at a driver without a list.
func (c *cycle) askEach(ctx context.Context, volumes []*corev1.PersistentVolume) []said {
	if c.page != nil {
		return nil
	}
	out := make([]said, len(volumes))
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(c.options.Volumes, len(volumes)) {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(volumes)); i = next.Add(1) - 1 {
				out[i] = c.ask(ctx, volumes[i])
			}
		})
	}
	all.Wait()
	return out
}

// ask queries the driver about one volume.
func (c *cycle) ask(ctx context.Context, v *corev1.PersistentVolume) said {
	if c.silent.Load() {
		return said{}
	}
	ctx, cancel := c.limited(ctx)
	defer cancel()
	ctx = csi.About(ctx, csi.Subject{Volume: v.Name, Claim: cluster.ClaimOf(v)})
	told, err := c.one(ctx, v.Spec.CSI.VolumeHandle)
	if err != nil && !mount.AskNext(csi.AnswerOf(err)) {
		c.silent.Store(true)
	}
	return told
}

// hide removes from reports the secrets that the driver has received for the volume, even from another process.
func (c *cycle) hide(ctx context.Context, v *corev1.PersistentVolume, all []health.Report) []health.Report {
	if len(all) == 0 {
		return nil
	}
	var known []map[string]string
	var unread error
	for _, ref := range health.SecretsOf(v) {
		s, ok := c.secrets[ref]
		if !ok {
			s.data, s.err = kube.SecretData(ctx, c.Client, &ref)
			c.secrets[ref] = s
		}
		if known = append(known, s.data); s.err != nil {
			unread = s.err
		}
	}
	return health.Hide(all, known, unread)
}

// record is what is known of a volume from earlier cycles.
type record struct {
	// absences counts the complete lists in which an unhealthy volume was absent. When the volume is listed again, the
	// count restarts.
	absences int
	// told is what only events have reported, because the API server does not keep the claim's field. Anything missing
	// here is reported again.
	told *corev1.VolumeHealthStatus
}

// memory holds the records of each driver's volumes.
type memory struct {
	mu  sync.Mutex
	all map[string]map[types.UID]record
}

func newMemory() *memory { return &memory{all: map[string]map[types.UID]record{}} }

// known returns the records of a driver's volumes, which must not be changed.
func (m *memory) known(driver string) map[types.UID]record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all[driver]
}

func (m *memory) remember(driver string, all map[types.UID]record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all[driver] = all
}

func (m *memory) forget(driver string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, driver)
}
