package exchange

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/testkit/seeds"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/upstream"
)

const (
	// fewExchanges is how often `make test` exchanges programs: there and back.
	fewExchanges = 2
	// exchangeLimit is how long it may take until no work is left.
	exchangeLimit = 2 * time.Minute
)

// TestExchange exchanges upstream's five programs for volplane's and back, in the middle of calls that the driver has
// or has not performed and never answers, while claims, Pods and snapshots are created, changed and deleted. The
// running programs have upstream's arguments and rights. Nothing is lost, left, stuck or created twice.
func TestExchange(t *testing.T) {
	t.Parallel()
	n, seed := seeds.Count(t, fewExchanges), seeds.First(t)
	t.Logf("played %d exchanges, SEED=%d", n, seed)
	e := newExchange(t, seed, n)
	for round := range n {
		e.round(round)
	}
	// Volplane knows what it has begun.
	if !e.ours {
		e.exchange()
	}
	e.rest()
	e.deleteAll()
	e.rest()
	e.nothingTwice()
	t.Logf("calls that had no answer when programs were exchanged: %v", e.cut)
	if n >= 50 {
		for _, method := range exchangedMethods() {
			if e.cut[method] == 0 {
				t.Errorf("no exchange was in the middle of %s", method)
			}
		}
	}
}

// exchange is a cluster whose sidecars are exchanged.
type exchange struct {
	*cluster.Installation
	driver  *csitest.Driver
	dynamic dynamic.Interface
	rand    *rand.Rand
	// identities are the kubeconfigs of the accounts.
	identities map[string]string
	programs   []*upstream.Program
	// ours says that volplane works.
	ours    bool
	slots   []*slot
	silence *silence
	// cut counts the calls that had no answer when programs were exchanged.
	cut map[string]int
	// answered is the number of calls at which a volume existed, and dropped that at which its claim was deleted.
	answered, dropped map[string]int
	// named counts the names that were given.
	named int
}

func exchangedMethods() []string {
	return []string{
		"CreateVolume", "DeleteVolume", "ControllerPublishVolume", "ControllerUnpublishVolume", "ControllerExpandVolume",
		"CreateSnapshot", "DeleteSnapshot",
	}
}

func newExchange(t *testing.T, seed uint64, n int) *exchange {
	t.Helper()
	c := cluster.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n+2)*exchangeLimit)
	t.Cleanup(cancel)
	c.Controllers(t, "persistentvolume-binder-controller", "persistentvolume-attach-detach-controller",
		"persistentvolume-protection-controller", "persistentvolumeclaim-protection-controller")
	config := csitest.Full()
	config.NodeID, config.Controller.Snapshot, config.Controller.ListSnapshots = "id-n1", true, true
	// No kubelet runs.
	config.Node.Expand = false
	e := &exchange{
		Installation: &cluster.Installation{Cluster: c, T: t, Ctx: ctx, Base: "exchange", Space: "default"},
		driver:       csitest.Start(t, config), rand: rand.New(rand.NewPCG(seed, 0)), identities: map[string]string{},
		silence: newSilence(), cut: map[string]int{}, answered: map[string]int{}, dropped: map[string]int{},
	}
	var err error
	e.dynamic, err = dynamic.NewForConfig(c.AdminConfig())
	e.Must(err)
	e.driver.OnEach(e.silence.answer)
	c.ServeSnapshots(ctx, t)
	e.CreateObjects(e.driver.Name())
	e.Kubectl(ctx, t, strings.ReplaceAll(exchangeClass, "DRIVER", e.driver.Name()), "apply", "-f", "-")
	for _, s := range sidecarRights {
		e.Kubectl(ctx, t, upstreamManifest(t, s.module, s.file), "apply", "-f", "-")
		e.Space = s.space
		mayReadSecrets(e.Installation, s.account, s.space)
		e.identities[s.account] = e.Identity(s.account)
	}
	for i := range 8 {
		e.slots = append(e.slots, &slot{number: i})
	}
	e.start()
	return e
}

// exchangeClass is the class of the snapshots.
const exchangeClass = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: shots}
driver: DRIVER
deletionPolicy: Delete
`

// exchangeArguments are the programs' further arguments. Upstream's snapshotter reconciles a content that was
// deleted while its snapshot was being created only at a resync, by default every 15 minutes.
func exchangeArguments() map[string]string {
	return map[string]string{
		"csi-provisioner": "--feature-gates=Topology=true", "csi-attacher": "--resync=5s",
		"csi-resizer":     "--resync-period=5s",
		"csi-snapshotter": "--resync-period=5s", "snapshot-controller": "--resync-period=5s",
	}
}

// start starts all programs of one side, as the containers of one Pod.
func (e *exchange) start() {
	e.silence.side(e.ours)
	for _, s := range sidecarRights {
		args := []string{"--v=2", "--kubeconfig=" + e.identities[s.account]}
		if s.account != "snapshot-controller" {
			args = append(args, "--csi-address=unix://"+e.driver.Socket)
		}
		args = append(args, exchangeArguments()[s.account])
		name := s.account
		if e.ours {
			name, args = "volplane", append([]string{name}, args...)
		}
		e.programs = append(e.programs, upstream.Start(e.T, name, args...))
	}
}

// exchange ends all programs, by SIGKILL or SIGTERM, and starts those of the other side.
func (e *exchange) exchange() {
	for method, n := range e.silence.waiting() {
		e.cut[method] += n
	}
	for _, p := range e.programs {
		if e.rand.IntN(3) > 0 {
			p.Kill()
		} else {
			p.End()
		}
	}
	e.silence.end()
	e.programs, e.ours = nil, !e.ours
	e.start()
}

// round makes users and the driver do something, exchanges the programs, and sometimes waits until no work is left.
func (e *exchange) round(round int) {
	if e.rand.IntN(3) > 0 {
		e.silence.begin(e.rand)
	}
	text := ""
	for _, s := range e.slots {
		text += e.act(e.Ctx, s)
	}
	seen, wanted := len(e.driver.Calls()), e.rand.IntN(12)
	// There may be less to do than that.
	meanwhile, cancel := context.WithTimeout(e.Ctx, 3*time.Second)
	defer cancel()
	err := upstream.Poll(meanwhile, func() (bool, error) { return len(e.driver.Calls()) >= seen+wanted, nil })
	who := map[bool]string{true: "volplane", false: "upstream"}
	e.T.Logf("round %d, %s works:%s; exchanged after %d calls (%v), in the middle of %v", round, who[e.ours], text,
		len(e.driver.Calls())-seen, err, e.silence.waiting())
	e.exchange()
	if e.rand.IntN(3) == 0 {
		e.rest()
	}
}
