package health

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/health"
	"volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/kube"
)

const (
	// pageSize is how many volumes a driver is to tell of at once, and maxPages how many such answers are read.
	pageSize, maxPages = 500, 1000
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
	// silent says that the driver does not answer.
	silent atomic.Bool
	// eventsOnly says that claims cannot hold what is told: the API server drops it, or refuses it for want of a right.
	eventsOnly bool
	// secrets holds the Secrets that were read in this cycle.
	secrets map[corev1.SecretReference]secret
}

// secret is what was read of a Secret.
type secret struct {
	data map[string]string
	err  error
}

// list returns what the driver tells of volumes that are not well, by their handles, and whether that is all. Of a list
// without an end nothing is left, because more of the same volume may have followed.
func (c *cycle) list(
	ctx context.Context, volumes []*corev1.PersistentVolume,
) (told map[string][]health.Report, complete bool) {
	told = map[string][]health.Report{}
	if !c.driver.Controller.ListVolumeHealth || len(volumes) == 0 {
		return told, false
	}
	ours := map[string]bool{}
	for _, v := range volumes {
		ours[v.Spec.CSI.VolumeHandle] = true
	}
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	if err := c.pages(ctx, func(e *csipb.VolumeHealth) {
		if id := e.GetVolumeId(); ours[id] {
			all := append(told[id], reports(e)...)
			told[id] = all[:min(len(all), maxReports)]
		}
	}); err != nil {
		if !csi.IsAnswer(err) && ctx.Err() == nil {
			c.Env.Log.Warn("driver does not say how its volumes are", "driver", c.driver.Name, "err", err)
		}
		return map[string][]health.Report{}, false
	}
	return told, true
}

// pages calls visit for each entry of the driver's list.
func (c *cycle) pages(ctx context.Context, visit func(*csipb.VolumeHealth)) error {
	token := ""
	for range maxPages {
		r, err := c.page(ctx, token)
		if err != nil {
			return fmt.Errorf("list health of volumes: %s", csi.Describe(err))
		}
		for _, e := range r.GetEntries() {
			visit(e)
		}
		if r.GetNextToken() == "" {
			return nil
		}
		if r.GetNextToken() == token {
			return errEndless
		}
		token = r.GetNextToken()
	}
	return errEndless
}

func (c *cycle) page(ctx context.Context, token string) (*csipb.ControllerListVolumeHealthResponse, error) {
	ctx, cancel := c.limited(ctx)
	defer cancel()
	return c.driver.ControllerClient().ControllerListVolumeHealth(ctx,
		&csipb.ControllerListVolumeHealthRequest{MaxEntries: pageSize, StartingToken: token})
}

// limited returns the context of one call.
func (c *cycle) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.options.Timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.options.Timeout)
}

// said is what the driver has said of one volume.
type said struct {
	reports []health.Report
	answer  health.Answer
}

// askEach asks a driver that has no list about each of its volumes.
func (c *cycle) askEach(ctx context.Context, volumes []*corev1.PersistentVolume) []said {
	if c.driver.Controller.ListVolumeHealth {
		return nil
	}
	out := make([]said, len(volumes))
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(c.options.Volumes, len(volumes)) {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(volumes)); i = next.Add(1) - 1 {
				out[i].reports, out[i].answer = c.ask(ctx, volumes[i])
			}
		})
	}
	all.Wait()
	return out
}

// ask asks the driver about one volume.
func (c *cycle) ask(ctx context.Context, v *corev1.PersistentVolume) ([]health.Report, health.Answer) {
	if c.silent.Load() {
		return nil, health.Silent
	}
	ctx, cancel := c.limited(ctx)
	defer cancel()
	ctx = csi.About(ctx, csi.Subject{Volume: v.Name, Claim: cluster.ClaimOf(v)})
	r, err := c.driver.ControllerClient().ControllerGetVolumeHealth(ctx,
		&csipb.ControllerGetVolumeHealthRequest{VolumeId: v.Spec.CSI.VolumeHandle})
	if err != nil {
		if !mount.AskNext(csi.AnswerOf(err)) {
			c.silent.Store(true)
		}
		return nil, health.Silent
	}
	return reports(r.GetVolumeHealth()), health.Told
}

func reports(h *csipb.VolumeHealth) []health.Report {
	var out []health.Report
	for _, e := range h.GetHealthStatuses() {
		out = append(out, health.Report{Status: e.GetStatus().String(), Reason: e.GetReason(), Message: e.GetMessage()})
	}
	return out
}

// hide removes from reports the secrets that the driver has received for the volume, also from another process.
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
