package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/upstream"
)

// shared is the namespace that two drivers share.
const shared = "storage"

// TestEachProvisionerItsLog: the provisioners of two drivers, even in one namespace, never conflict when they write
// their intents, and read each log once; after a kill while their drivers work, each resumes its own intents and
// touches none of the other's.
func TestEachProvisionerItsLog(t *testing.T) {
	t.Parallel()
	c, log := cluster.AuditedCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	c.Controllers(t, "persistentvolume-binder-controller", "persistentvolume-protection-controller",
		"persistentvolumeclaim-protection-controller")
	a, b := newMaker(ctx, t, c, "a"), newMaker(ctx, t, c, "b")
	both := []*maker{a, b}
	for _, m := range both {
		m.start()
	}
	for n := range 20 {
		a.claims(n, n+1)
		b.claims(n, n+1)
	}
	for _, m := range both {
		m.bound(0, 20)
	}
	// They end in the middle of their work.
	for _, m := range both {
		m.driver.OnCall("CreateVolume", func(int, any) csitest.Action { return csitest.Action{After: true, Hang: true} })
		m.claims(20, 26)
	}
	for _, m := range both {
		m.made(26)
		m.ours.Kill()
		m.driver.OnCall("CreateVolume", nil)
		m.begun(20, 26)
		m.unclaim(20, 23)
	}
	left, calls := b.log(), len(b.driver.Calls())
	a.start()
	a.recovers()
	if now := b.log(); !slices.Equal(now, left) || len(b.driver.Calls()) != calls {
		t.Errorf("while only the other works, the log of b was %v and is %v; the driver was called %d times", left, now,
			len(b.driver.Calls())-calls)
	}
	b.start()
	b.recovers()
	for _, m := range both {
		m.ours.End()
		m.aloneInLog(log)
	}
}

// maker is a driver with its provisioner.
type maker struct {
	*cluster.Installation
	driver *csitest.Driver
	ours   *upstream.Program
	name   string
	lives  int
}

func newMaker(ctx context.Context, t *testing.T, c *cluster.Cluster, name string) *maker {
	t.Helper()
	config := csitest.Full()
	config.Name, config.Segments, config.Plugin.AccessibilityConstraints = name+".example.com", nil, false
	m := &maker{driver: csitest.Start(t, config), name: name}
	m.Installation = c.Install(ctx, t, m.driver.Name(), "--namespace="+shared, "--create-namespace", "--shape=statefulset",
		"--controllers=provisioner")
	_, err := c.Client.StorageV1().StorageClasses().Create(ctx,
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: m.driver.Name()},
		metav1.CreateOptions{})
	m.Must(err)
	return m
}

// start begins another run of the provisioner.
func (m *maker) start() {
	m.T.Helper()
	m.lives++
	m.ours = runs(m.Installation, "statefulset", m.driver)
}

func (m *maker) claim(n int) string { return fmt.Sprint(m.name, "-", n) }

// claims makes those from first to before last.
func (m *maker) claims(first, last int) {
	m.T.Helper()
	for n := first; n < last; n++ {
		_, err := m.Client.CoreV1().PersistentVolumeClaims("default").Create(m.Ctx, upstream.ClaimOf(m.claim(n), m.name),
			metav1.CreateOptions{})
		m.Must(err)
	}
}

func (m *maker) unclaim(first, last int) {
	m.T.Helper()
	for n := first; n < last; n++ {
		m.Must(m.Client.CoreV1().PersistentVolumeClaims("default").Delete(m.Ctx, m.claim(n), metav1.DeleteOptions{}))
	}
}

// bound waits until those from first to before last are.
func (m *maker) bound(first, last int) {
	m.T.Helper()
	for n := first; n < last; n++ {
		upstream.Eventually(m.Ctx, m.T, func() string {
			c, err := m.Client.CoreV1().PersistentVolumeClaims("default").Get(m.Ctx, m.claim(n), metav1.GetOptions{})
			if err != nil || c.Status.Phase != corev1.ClaimBound {
				return fmt.Sprintf("claim %s is not bound: %v", m.claim(n), err)
			}
			return ""
		})
	}
}

// made waits until the driver has so many volumes.
func (m *maker) made(want int) {
	m.T.Helper()
	upstream.Eventually(m.Ctx, m.T, func() string {
		if n := len(m.driver.Volumes()); n != want {
			return fmt.Sprintf("driver %s has %d volumes, not %d", m.name, n, want)
		}
		return ""
	})
}

// label is what the objects of its log have.
func (m *maker) label() string { return volume.LabelIntents + "=volplane-intents-" + m.Base }

// log returns the objects of its log and in which state they are.
func (m *maker) log() []string {
	m.T.Helper()
	all, err := m.Client.CoordinationV1().Leases("").List(m.Ctx, metav1.ListOptions{LabelSelector: m.label()})
	m.Must(err)
	var out []string
	for _, o := range all.Items {
		out = append(out, fmt.Sprint(o.Namespace, "/", o.Name, " ", o.ResourceVersion))
	}
	return out
}

// begun fails the test unless its log, and no other, has the intents for the claims from first to before last.
func (m *maker) begun(first, last int) {
	m.T.Helper()
	all, err := m.Client.CoordinationV1().Leases("").List(m.Ctx, metav1.ListOptions{LabelSelector: volume.LabelIntents})
	m.Must(err)
	for n := first; n < last; n++ {
		c, err := m.Client.CoreV1().PersistentVolumeClaims("default").Get(m.Ctx, m.claim(n), metav1.GetOptions{})
		m.Must(err)
		var in []string
		for _, o := range all.Items {
			if strings.Contains(o.Annotations[volume.AnnIntents], string(c.UID)) {
				in = append(in, o.Namespace+"/"+o.Labels[volume.LabelIntents])
			}
		}
		if want := []string{shared + "/volplane-intents-" + m.Base}; !slices.Equal(in, want) {
			m.T.Errorf("the intent for %s is in %v, not %v", c.Name, in, want)
		}
	}
}

// recovers waits until no unfinished work is left: existing claims are bound, and everything else is gone.
func (m *maker) recovers() {
	m.T.Helper()
	m.bound(23, 26)
	m.made(23)
	upstream.Eventually(m.Ctx, m.T, func() string {
		if left := m.log(); len(left) > 0 {
			return fmt.Sprintf("intents of %s are left: %v", m.name, left)
		}
		return ""
	})
}

// ofLog says whether a request is about the log of a provisioner, and not about other Leases.
func ofLog(r cluster.Request) bool {
	name := strings.HasPrefix(r.ObjectRef.Name, "volplane-intents-")
	label := strings.Contains(r.RequestURI, url.QueryEscape(volume.LabelIntents))
	return r.ObjectRef.Resource == "leases" && (name || r.Verb == "create" || r.Verb == "list" && label)
}

// aloneInLog fails the test if another process has written to its log, or it to another's, or if it had to read its own
// more than once in each of its lives.
func (m *maker) aloneInLog(log string) {
	m.T.Helper()
	reads, writes := 0, 0
	for _, r := range m.Audited(log, m.Base+"-controller") {
		switch {
		case r.ResponseStatus.Code == http.StatusForbidden:
			m.T.Errorf("%s may not %s %s: %s", m.name, r.Verb, r.RequestURI, r.ResponseStatus.Message)
		case !ofLog(r):
		case r.ResponseStatus.Code >= http.StatusBadRequest:
			m.T.Errorf("%s was refused to %s %s: %d %s", m.name, r.Verb, r.RequestURI, r.ResponseStatus.Code,
				r.ResponseStatus.Message)
		case r.Verb == "list":
			reads++
		default:
			writes++
			if r.ObjectRef.Namespace != shared ||
				!strings.HasPrefix(r.ObjectRef.Name+"-", "volplane-intents-"+m.Base+"-") && r.Verb != "create" {
				m.T.Errorf("%s did %s %s", m.name, r.Verb, r.RequestURI)
			}
		}
	}
	if reads != m.lives || writes == 0 {
		m.T.Errorf("%s has read its log %d times in %d lives, and written it %d times", m.name, reads, m.lives, writes)
	}
	m.T.Logf("%s has read its log %d times and written it %d times in %d lives, without a conflict", m.name, reads,
		writes, m.lives)
}
