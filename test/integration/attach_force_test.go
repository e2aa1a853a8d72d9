package integration

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/attachdetach"
	"volplane.dev/volplane/internal/kube"
)

// withClock replaces the plane's attach/detach controller, until the test ends, by one whose clock the
// returned function advances.
func (p *plane) withClock(o attachdetach.Options) (advance func(time.Duration)) {
	p.t.Helper()
	p.stop()
	p.tune = func(o *app.ControlPlaneOptions) {
		for _, d := range app.Declarations() {
			if d.Name != attachdetach.Declaration().Name {
				o.Roles = append(o.Roles, d.Name)
			}
		}
	}
	p.start()
	var ahead atomic.Int64
	o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	ctx, cancel := context.WithCancel(context.Background())
	caches := kube.NewCaches(p.client)
	log := slog.New(slog.DiscardHandler)
	c := attachdetach.New(controller.Env{
		Client: p.client, Caches: caches, Events: kube.NewRecorder(ctx, p.client, "attachdetach"), Log: log,
	}, o)
	p.must(caches.Start(ctx))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	p.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			p.t.Error(err)
		}
	})
	return func(d time.Duration) { ahead.Add(int64(d)) }
}

// TestForceDetachOnTimeout: a volume of a node that does not respond is detached after six minutes. Where
// that is disabled, it is detached when an administrator declares the node out of service, or when the node
// has returned, and events say so.
func TestForceDetachOnTimeout(t *testing.T) {
	for _, c := range []struct {
		name     string
		disabled bool
		end      func(p *plane)
	}{
		{"after six minutes", false, func(*plane) {}},
		{"by taint", true, func(p *plane) { p.outOfService("n1") }},
		{"by its return", true, func(p *plane) {
			p.patchNodeStatus("n1", map[string]any{
				"conditions": []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			})
			p.reportInUse("n1")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlane(t)
			advance := p.withClock(attachdetach.Options{DisableForceDetachOnTimeout: c.disabled})
			handle := p.createBoundVolume("c")
			p.createPod("web", "n1", "c")
			p.waitForAttached("n1", handle)
			p.reportInUse("n1", handle)
			p.patchNodeStatus("n1", map[string]any{
				"conditions": []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}},
			})
			p.deletePod("web")
			p.waitForAttached("n1")
			p.late(handle, advance, c.disabled)
			c.end(p)
			p.waitForDetached()
		})
	}
}

// late advances the clock until the volume is being detached or, where that is disabled, until events say
// why it is not.
func (p *plane) late(handle string, advance func(time.Duration), disabled bool) {
	p.t.Helper()
	looks := 0
	p.eventually(func() string {
		// The node changes, too, so that it is reconciled.
		advance(7 * time.Minute)
		looks++
		p.reportInUse("n1", handle, fmt.Sprint("other", looks%2))
		if !disabled {
			if len(p.attachments()) > 0 {
				return "it stays attached"
			}
			return ""
		}
		events, err := p.client.CoreV1().Events("").List(p.ctx, metav1.ListOptions{FieldSelector: "reason=StillMounted"})
		p.must(err)
		told := ""
		for _, e := range events.Items {
			if strings.Contains(e.Message, "--disable-force-detach-on-timeout") &&
				strings.Contains(e.Message, corev1.TaintNodeOutOfService) {
				told += e.InvolvedObject.Kind
			}
		}
		if !strings.Contains(told, "Node") || !strings.Contains(told, "VolumeAttachment") {
			return "nobody is told: " + told
		}
		return ""
	})
	if disabled {
		if all := p.attachments(); len(all) != 1 || all[0].DeletionTimestamp != nil {
			p.t.Errorf("attachments: %+v", all)
		}
	}
}
