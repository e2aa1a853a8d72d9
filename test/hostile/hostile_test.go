package hostile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/app"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/testkit/seeds"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/standalonetest"
	standalone "volplane.dev/volplane/test/internal/plane"
)

const (
	// fewRounds is how many rounds `make test` plays.
	fewRounds = 2
	// neighbours is how many lives a round has.
	neighbours = 20
	// together is how many rounds share an API server: it gets slower by what
	// they leave in it.
	together = 5
	// patience bounds how long a round takes to come to rest; it takes seconds.
	patience = 3 * time.Minute
)

// TestHostileDrivers plays rounds, each with a seed of its own.
func TestHostileDrivers(t *testing.T) {
	seed, rounds := seeds.First(t), seeds.Count(t, fewRounds)
	t.Logf("played %d lives, SEED=%d", rounds*neighbours, seed)
	for last := seed + uint64(rounds); seed < last && !t.Failed(); {
		t.Run(fmt.Sprint("from=", seed), func(t *testing.T) {
			town := newTown(t)
			for n := 0; n < together && seed < last && !t.Failed(); n++ {
				t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { town.round(t, seed).play() })
				seed++
			}
		})
	}
}

// apiServer is the API server that all rounds share.
type apiServer struct {
	server *apiserver.Server
	client kubernetes.Interface
}

func newTown(t *testing.T) *apiServer {
	t.Helper()
	w := &apiServer{server: standalonetest.Start(t, app.RBAC()...)}
	config := w.server.AdminConfig()
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	w.client = client
	return w
}

// round is a number of lives at the same time, with the processes that they share.
type round struct {
	*apiServer
	t        *testing.T
	dir      string
	seed     uint64
	dice     *rand.Rand
	programs map[string]*program
	lives    []*life

	mu     sync.Mutex
	faults []string
}

// round is a number of lives at the same time, with the processes that they share.
func (w *apiServer) round(t *testing.T, seed uint64) *round {
	t.Helper()
	// Not t.TempDir: the name of a unix socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "hostile-")
	if err != nil {
		t.Fatal(err)
	}
	r := &round{
		apiServer: w, t: t, dir: dir, seed: seed, dice: rand.New(rand.NewPCG(seed, 0)), programs: map[string]*program{},
	}
	t.Cleanup(r.close)
	for _, place := range append(nodes(), plane()) {
		p := &program{
			role: role{Place: place, Dir: filepath.Join(dir, place), Kubeconfig: w.server.AdminKubeconfig()},
			log:  filepath.Join(dir, place+".log"),
		}
		r.programs[place] = p
		r.must(os.MkdirAll(p.registry(), 0o700))
	}
	for i := range neighbours {
		r.lives = append(r.lives, r.life(i))
	}
	return r
}

func (r *round) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// life creates a life with its driver.
func (r *round) life(i int) *life {
	name := fmt.Sprintf("l%d-%d", r.seed, i)
	seed := r.seed<<16 + uint64(i)
	d := newDriver(name+".example.com", newMood(seed), func(place string) int { return r.programs[place].died() }, r.fault)
	for place, p := range r.programs {
		d.sides[place] = &side{d: d, place: place, dir: r.dir}
		if place != plane() {
			d.sides[place].registry = p.registry()
		} else {
			p.Sockets = append(p.Sockets, d.sides[place].socket())
		}
	}
	l := newLife(name, seed, r.client, d)
	r.must(l.prepare(r.t.Context()))
	return l
}

func (r *round) fault(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, text)
}

// close ends all processes and removes the mounts. The files of a failed round are kept.
func (r *round) close() {
	for _, p := range r.programs {
		p.kill()
	}
	for _, l := range r.lives {
		for _, s := range l.driver.sides {
			s.stop()
		}
	}
	points, err := mount.Below(r.dir)
	if err != nil {
		r.t.Error(err)
	}
	for _, p := range slices.Backward(points) {
		_ = unix.Unmount(p.Path, unix.UMOUNT_NOFOLLOW)
	}
	if !r.t.Failed() {
		_ = os.RemoveAll(r.dir)
		return
	}
	for _, l := range r.lives {
		_ = os.WriteFile(filepath.Join(r.dir, l.name+".diary"),
			[]byte(strings.Join(append(l.diary, l.driver.diary...), "\n")), 0o600)
	}
	r.t.Logf("SEED=%d plays this round; logs and diaries are in %s", r.seed, r.dir)
}

// play runs the lives while processes are killed, and checks the state when the drivers have stopped to
// misbehave, and again when everything is deleted.
func (r *round) play() {
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	for _, p := range r.programs {
		r.must(p.start())
	}
	var playing, killing sync.WaitGroup
	lived := make(chan struct{})
	killing.Go(func() { r.kill(lived) })
	for _, l := range r.lives {
		playing.Go(func() {
			r.startDrivers(ctx, l)
			if err := l.play(ctx); err != nil {
				r.fault(fmt.Sprintf("%s: %v", l.name, err))
			}
		})
	}
	playing.Wait()
	close(lived)
	killing.Wait()
	r.behaveWell()
	seen := r.awaitRest(ctx, "after the storm")
	for _, l := range r.lives {
		r.must(l.finish(ctx, seen))
	}
	seen = r.awaitRest(ctx, "at the end")
	r.secrets(ctx, seen)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, text := range r.faults {
		r.t.Error(text)
	}
	for place, p := range r.programs {
		if p.alone() {
			r.t.Errorf("%s has ended by itself", place)
		}
	}
}

// startDrivers starts the processes of a life's driver, some of them late.
func (r *round) startDrivers(ctx context.Context, l *life) {
	for _, place := range append(nodes(), plane()) {
		if l.dice.IntN(5) == 0 {
			late := time.Duration(l.dice.IntN(2000)) * time.Millisecond
			l.driver.sides[place].leaving.Go(func() {
				pause(ctx, late)
				_ = l.driver.sides[place].start()
			})
			continue
		}
		if err := l.driver.sides[place].start(); err != nil {
			r.fault(err.Error())
		}
	}
}

// kill kills processes until all lives have ended.
func (r *round) kill(lived <-chan struct{}) {
	places := append(nodes(), plane())
	for {
		select {
		case <-lived:
			return
		case <-time.After(time.Duration(300+r.dice.IntN(1500)) * time.Millisecond):
		}
		if r.dice.IntN(3) == 0 {
			r.restart(places[r.dice.IntN(len(places))])
			continue
		}
		for range 1 + r.dice.IntN(4) {
			s := r.lives[r.dice.IntN(len(r.lives))].driver.sides[places[r.dice.IntN(len(places))]]
			s.kill()
			_ = s.start()
		}
	}
}

// restart kills a process and starts it again, sometimes without its journal.
func (r *round) restart(place string) {
	p := r.programs[place]
	p.kill()
	if place != plane() && r.dice.IntN(2) == 0 {
		if err := r.lose(p); err != nil {
			r.fault(err.Error())
		}
	}
	if err := p.start(); err != nil {
		r.fault(err.Error())
	}
}

// lose removes records from an agent's journal, or all of it. Records of inline volumes stay, because
// nothing else records these volumes when their Pods are gone. Records of volumes whose Pods have no
// condition yet stay as well when only some records are lost: the agent would take their mounts for
// unknown ones, and report them (docs/node.md).
func (r *round) lose(p *program) error {
	records, err := readJournal(p.Dir)
	pods, e := r.client.CoreV1().Pods("").List(r.t.Context(), metav1.ListOptions{})
	if err = errors.Join(err, e); err != nil {
		return err
	}
	untold := map[string]bool{}
	for i := range pods.Items {
		told, _ := standalone.Mounted(&pods.Items[i])
		untold[string(pods.Items[i].UID)] = !told
	}
	whole, lost := r.dice.IntN(2) == 0, []string{}
	for _, path := range slices.Sorted(maps.Keys(records)) {
		o := records[path]
		mine := slices.ContainsFunc(o.Targets, func(t decide.Target) bool { return untold[t.PodUID] })
		if some := r.dice.IntN(2) == 0 && len(o.Targets) > 0 && !mine; o.Ephemeral || !whole && !some {
			continue
		}
		lost = append(lost, o.Key())
		err = errors.Join(err, os.Remove(path))
	}
	if whole {
		err = errors.Join(err, os.RemoveAll(filepath.Join(p.Dir, "journal", "quarantine")))
	}
	return errors.Join(err, p.note("LOST: the journal as a whole %v, records %v", whole, lost))
}

// behaveWell ends the misbehavior of all drivers: calls do not hang any more, and processes that were away
// are started. In every other round the controllers and agents are restarted as well; otherwise they must
// notice themselves.
func (r *round) behaveWell() {
	for _, l := range r.lives {
		l.driver.mood.calm.Store(true)
		for _, s := range l.driver.sides {
			s.kill()
			r.must(s.start())
		}
	}
	if r.seed%2 == 0 {
		for _, place := range append(nodes(), plane()) {
			r.restart(place)
		}
	}
}

// awaitRest waits until nothing is wrong, and returns the state.
func (r *round) awaitRest(ctx context.Context, when string) *snapshot {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	dirs := map[string]string{}
	for _, node := range nodes() {
		dirs[node] = filepath.Join(r.dir, node)
	}
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	var wrong []string
	for {
		seen, err := look(ctx, r.client, dirs)
		if ctx.Err() != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.t.Fatalf("%s:\n%s\nfaults:\n%s", when, strings.Join(wrong, "\n"), strings.Join(r.faults, "\n"))
		}
		r.must(err)
		wrong = nil
		for _, l := range r.lives {
			if text := l.wrong(seen); text != "" {
				wrong = append(wrong, text)
			}
		}
		if text := mountsBeside(seen, r.lives); text != "" {
			wrong = append(wrong, text)
		}
		if len(wrong) == 0 {
			return seen
		}
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
}

// secrets looks for secrets in all texts that users can read.
func (r *round) secrets(ctx context.Context, seen *snapshot) {
	var logs []string
	for _, p := range r.programs {
		logs = append(logs, p.log)
	}
	text, err := told(ctx, r.client, seen, logs)
	r.must(err)
	for _, l := range r.lives {
		if spelled := l.driver.mood.seen(text); spelled != "" {
			r.t.Errorf("%s: a secret can be read: %s", l.name, spelled)
		}
	}
}
