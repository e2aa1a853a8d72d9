package hostile

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi/registrar"
)

// driver is the storage of a driver, which outlives its processes, the sides.
type driver struct {
	name string
	mood behavior
	kind
	// sides are by place: "plane" and the nodes.
	sides map[string]*side
	// deaths counts how often the caller at a place has died.
	deaths func(place string) int
	faults func(string)

	mu    sync.Mutex
	disks map[string]*driverVolume
	// busy is the call under way, done the last one of its kind that was
	// answered, of each volume and place.
	busy, done map[string]*call
	// given are the secrets of each volume at each place, denied says which expansions were
	// refused for good, diary is what was called.
	given  map[string]*given
	denied map[string]bool
	diary  []string
}

// side is one process of a driver, at the control plane or at a node.
type side struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer
	csipb.UnimplementedNodeServer

	d *driver
	// place is the node's name; dir is where it listens, and registry where it
	// is announced, nowhere when empty.
	place, dir, registry string

	mu     sync.Mutex
	server *grpc.Server
	// life ends with the process; number counts the processes.
	life    context.Context //nolint:containedctx // it is the process
	end     context.CancelFunc
	number  int
	leaving sync.WaitGroup
}

// call is one call as the driver sees it.
type call struct {
	method      string
	deaths, was int
}

func plane() string { return "plane" }

func nodes() []string { return []string{"n1", "n2"} }

func newDriver(name string, m behavior, deaths func(string) int, faults func(string)) *driver {
	return &driver{
		name: name, mood: m, kind: kindOf(m.seed), deaths: deaths, faults: faults, sides: map[string]*side{},
		disks: map[string]*driverVolume{},
		busy:  map[string]*call{}, done: map[string]*call{}, given: map[string]*given{}, denied: map[string]bool{},
	}
}

func (s *side) socket() string { return filepath.Join(s.dir, s.d.name+"."+s.place) }

// start starts a process of the driver.
func (s *side) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return nil
	}
	if err := os.Remove(s.socket()); err != nil && !os.IsNotExist(err) {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: s.socket()})
	if err != nil {
		return err
	}
	// A killed process leaves its socket. A server that removed it at its end could remove its successor's.
	l.SetUnlinkOnClose(false)
	s.number++
	s.life, s.end = context.WithCancel(context.Background())
	s.server = grpc.NewServer(grpc.UnaryInterceptor(s.intercept))
	csipb.RegisterIdentityServer(s.server, s)
	csipb.RegisterControllerServer(s.server, s)
	csipb.RegisterNodeServer(s.server, s)
	server := s.server
	s.leaving.Go(func() { _ = server.Serve(l) })
	if s.registry == "" {
		return nil
	}
	r := registrar.Registrar{
		Driver: s.d.name, Endpoint: s.socket(), Path: registrar.Path(s.registry, s.d.name),
		Log: slog.New(slog.DiscardHandler),
	}
	life := s.life
	s.leaving.Go(func() {
		for life.Err() == nil {
			// It is refused while the agent, or its own next process, has no time for it.
			_ = r.Run(life)
			pause(life, 50*time.Millisecond)
		}
	})
	return nil
}

// kill ends the process. Its calls get no answer.
func (s *side) kill() {
	s.mu.Lock()
	server, end := s.server, s.end
	s.server = nil
	s.mu.Unlock()
	if server == nil {
		return
	}
	end()
	server.Stop()
}

// stop ends the process for good.
func (s *side) stop() {
	s.kill()
	s.leaving.Wait()
}

// fault records a call that must never be made, and refuses it. d.mu is held.
func (d *driver) fault(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	d.note("FAULT " + text)
	d.faults(d.name + ": " + text)
	return status.Error(codes.FailedPrecondition, text)
}

func (d *driver) note(text string) {
	d.diary = append(d.diary, time.Now().Format("05.000 ")+text)
}

// volumeOf returns the volume id of a call, which is derived from the name.
func volumeOf(req any) string {
	switch r := req.(type) {
	case *csipb.CreateVolumeRequest:
		return "v-" + r.GetName()
	case interface{ GetVolumeId() string }:
		return r.GetVolumeId()
	}
	return ""
}

// intercept gives a call the drawn outcome.
func (s *side) intercept(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, work grpc.UnaryHandler,
) (any, error) {
	method, id := path.Base(info.FullMethod), volumeOf(req)
	if id == "" {
		return work(ctx, req)
	}
	s.mu.Lock()
	number, life := s.number, s.life
	s.mu.Unlock()
	me := &call{method: method, deaths: s.d.deaths(s.place), was: number}
	turn, leave := s.d.enter(me, id, s, req)
	answer, err := s.play(ctx, life, turn, func() (any, error) {
		s.d.mu.Lock()
		defer s.d.mu.Unlock()
		if life.Err() != nil {
			return nil, status.Error(codes.Unavailable, "the driver is dead")
		}
		return work(context.WithValue(ctx, sayingKey{}, turn.says), req)
	})
	leave(err, ctx.Err() == nil && life.Err() == nil)
	return answer, err
}

// judge records violations: a second call in flight for a volume whose first caller did not die, and a call
// at a node that was answered already. A controller has no journal, so it repeats a call whose answer it
// could not write, and a node does so for an expansion. d.mu is held.
func (d *driver) judge(me *call, what, key string) {
	same := func(o *call) bool { return o != nil && o.deaths == me.deaths && o.was == me.was }
	if other := d.busy[key]; same(other) {
		_ = d.fault("%s during %s of %s", me.method, other.method, key)
	}
	if last := d.done[key]; same(last) && last.method == what && strings.HasPrefix(me.method, "Node") &&
		me.method != "NodeExpandVolume" {
		_ = d.fault("%s of %s was answered and is called again", what, key)
	}
}

// enter records a call, and returns its outcome and what to do at its end.
func (d *driver) enter(me *call, id string, s *side, req any) (turn, func(err error, heard bool)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := s.place + " " + id
	secrets := d.give(key, me, req)
	t := d.mood.draw(d.scene(me.method, s.place, id))
	if t.err != nil {
		t.err = status.Error(status.Code(t.err), d.mood.confess(me.method, secrets))
	}
	what := fmt.Sprintf("%s %s", me.method, target(req))
	d.judge(me, what, key)
	d.note(fmt.Sprintf("%s %s: %s", key, what, t))
	d.busy[key] = me
	return t, func(err error, heard bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.busy[key] == me {
			delete(d.busy, key)
		}
		d.note(fmt.Sprintf("%s %s: answered %v, heard: %v", key, what, status.Code(err), heard))
		delete(d.done, key)
		if heard && denies(me.method, status.Code(err)) {
			d.denied[id] = true
		}
		if err == nil && heard {
			d.done[key] = &call{method: what, deaths: me.deaths, was: me.was}
		}
	}
}

// given is the data about a volume that a process got from a caller, and the number of deaths of that
// caller until then.
type given struct {
	deaths  int
	secrets []string
}

// give records the secret of a call and returns the secrets of the volume that the process knows.
// Controllers have no record of what they sent. After a restart they know the Secret of the call, and so
// does their driver. d.mu is held.
func (d *driver) give(key string, c *call, req any) []string {
	g := d.given[key]
	if g == nil || !strings.HasPrefix(c.method, "Node") && g.deaths != c.deaths {
		g = &given{deaths: c.deaths}
		d.given[key] = g
	}
	if r, ok := req.(interface{ GetSecrets() map[string]string }); ok {
		if secret := r.GetSecrets()["key"]; secret != "" && !slices.Contains(g.secrets, secret) {
			g.secrets = append(g.secrets, secret)
		}
	}
	return g.secrets
}

// denies says that after this answer only a user's request for another size, or the next mount, makes the
// expansion go on.
func denies(method string, code codes.Code) bool {
	never := []codes.Code{codes.InvalidArgument, codes.OutOfRange, codes.NotFound}
	if method == "NodeExpandVolume" {
		never = append(never, codes.FailedPrecondition)
	}
	return strings.HasSuffix(method, "ExpandVolume") && slices.Contains(never, code)
}

// scene returns what a driver knows about a call. d.mu is held.
func (d *driver) scene(method, place, id string) scene {
	v := d.disks[id]
	return scene{method: method, place: place, id: id, there: v != nil, hidden: v != nil && !d.shown(v)}
}

// target returns a text that distinguishes two calls of a method for a volume.
func target(req any) string {
	switch r := req.(type) {
	case interface{ GetTargetPath() string }:
		return r.GetTargetPath()
	case interface{ GetNodeId() string }:
		return r.GetNodeId()
	}
	return ""
}

// play gives a call its drawn outcome.
func (s *side) play(ctx, life context.Context, t turn, work func() (any, error)) (answer any, err error) {
	if t.slow > 0 {
		// A driver continues to work, whether or not a caller waits.
		pause(life, t.slow)
	}
	if t.work {
		if answer, err = work(); err != nil {
			return nil, err
		}
	}
	switch {
	case t.hang:
		select {
		case <-ctx.Done():
		case <-life.Done():
		}
		return nil, status.Error(codes.Canceled, "it hung")
	case t.die:
		s.kill()
		s.leaving.Go(func() {
			pause(context.Background(), t.late)
			_ = s.start()
		})
		<-ctx.Done()
		return nil, status.Error(codes.Unavailable, "it died")
	case t.err != nil:
		return nil, t.err
	}
	return answer, nil
}

// pause waits for a time or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
