package health

import (
	"context"
	"errors"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

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
	silent bool
	// dropped says that the API server drops what is written.
	dropped bool
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
		if !errors.Is(ctx.Err(), context.Canceled) {
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
		r, err := c.driver.ControllerClient().ControllerListVolumeHealth(ctx,
			&csipb.ControllerListVolumeHealthRequest{MaxEntries: pageSize, StartingToken: token})
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

// ask asks the driver about one volume.
func (c *cycle) ask(ctx context.Context, v *corev1.PersistentVolume) ([]health.Report, health.Answer) {
	if c.silent {
		return nil, health.Silent
	}
	r, err := c.driver.ControllerClient().ControllerGetVolumeHealth(ctx,
		&csipb.ControllerGetVolumeHealthRequest{VolumeId: v.Spec.CSI.VolumeHandle})
	if err != nil {
		c.Env.Log.Debug("driver does not say how its volume is", "driver", c.driver.Name, "volume", v.Name, "err", err)
		c.silent = !mount.AskNext(csi.AnswerOf(err))
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
