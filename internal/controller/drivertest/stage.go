package drivertest

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// stage is one script while it runs: an API server and a driver in memory, and processes of the controller.
type stage struct {
	*testing.T
	Setting
	options map[string]string
	objects []runtime.Object
	deaf    bool
	// absent says that the driver is not in the set of drivers at the start.
	absent bool
	// works says that a controller works by itself.
	works bool

	// api is nil until the first step.
	api     *kubetest.API
	driver  *csitest.Driver
	dialed  *csi.Driver
	drivers *csi.Set
	// lives are the processes so far; the last one is the present one.
	lives []*kubetest.Process

	// turn is held while somebody else writes and the script takes note of it: the controller, which may hear of it at
	// once, writes afterwards.
	turn sync.Mutex

	// mu guards what follows.
	mu    sync.Mutex
	rules []*rule
	// others says that the next write is somebody else's than the controller's.
	others bool
	// killed is how this process ends, and steps are the writes and calls that were done.
	killed kill
	steps  []string
	// amid says that a line is done amid a call or request.
	amid bool
	notes
}

// play runs a script and returns it with what happened.
func play(t *testing.T, set Setting, paragraph string) string {
	s := &stage{T: t, Setting: set, options: map[string]string{}, notes: newNotes()}
	var out []string
	for line := range strings.SplitSeq(paragraph, "\n") {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		out = append(out, line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		s.do(line)
		if s.api != nil {
			out = append(out, s.happened()...)
		}
	}
	if len(s.lives) == 0 {
		t.Error("nothing is done")
	}
	for _, life := range s.lives {
		life.Kill()
	}
	return strings.Join(out, "\n")
}

// do does one line.
func (s *stage) do(line string) {
	s.Helper()
	if s.arrange(line) {
		return
	}
	words := strings.Fields(line)
	if _, ok := s.Kinds[strings.TrimSuffix(words[0], ";")]; ok {
		for text := range strings.SplitSeq(line, ";") {
			s.put(s.object(text))
		}
		return
	}
	s.begin()
	switch words[0] {
	case "look":
		s.look(s.lives[len(s.lives)-1], words[1:])
	case "former":
		s.look(s.lives[len(s.lives)-2], words[2:])
	case "busy":
		s.busy(words[1:])
	case "work":
		s.works = true
		s.lives[len(s.lives)-1].Work()
		s.wait()
	case "pass":
		s.pass(words[1])
	case "restart":
		s.start()
	case "drop", "delete":
		s.remove(words[0], words[1], words[2])
	case "driver":
		s.moveDriver(words[1:])
	default:
		s.Fatalf("what is %q?", line)
	}
}

// arrange does a line that needs no process, or says that the line does.
func (s *stage) arrange(line string) bool {
	words := strings.Fields(line)
	match, effect, rules := strings.Cut(line, " => ")
	switch {
	case rules:
		s.addRule(match, effect)
	case words[0] == "never":
		s.dropRules(strings.TrimPrefix(line, "never "))
	case words[0] == "option":
		name, value, _ := strings.Cut(words[1], "=")
		s.options[name] = value
	case words[0] == "without":
		s.Given = slices.DeleteFunc(slices.Clone(s.Given), func(kind string) bool { return slices.Contains(words, kind) })
	case words[0] == "deaf":
		s.deaf = true
	case words[0] == "driver" && strings.ContainsAny(words[1][:1], "+-"):
		for _, word := range words[1:] {
			s.setCapability(word)
		}
	case line == "driver gone" && s.api == nil:
		s.absent = true
	default:
		return false
	}
	return true
}

// setCapability changes what the driver can do: "-Controller.Expand".
func (s *stage) setCapability(word string) {
	field := reflect.ValueOf(&s.Driver).Elem()
	for name := range strings.SplitSeq(word[1:], ".") {
		field = field.FieldByName(name)
	}
	field.SetBool(word[0] == '+')
}

// begin makes the API server, the driver and the first process, unless they exist.
func (s *stage) begin() {
	if s.api != nil {
		return
	}
	for _, text := range s.Given {
		o := s.object(text)
		if !slices.ContainsFunc(s.objects, func(other runtime.Object) bool { return objectOf(other) == objectOf(o) }) {
			s.objects = append(s.objects, o)
		}
	}
	s.api = kubetest.NewAPI(s, s.objects...)
	s.remember(s.objects...)
	s.api.Fate = s.write
	s.api.PrependReactor("get", "*", s.read)
	s.driver = csitest.InMemory(s, s.Driver)
	s.driver.OnEach(s.call)
	s.had = s.inventory()
	s.dialed, s.drivers = s.driver.Dial(csitest.Told(s)), csi.NewSet()
	if !s.absent {
		s.drivers.Put(s.dialed)
	}
	if s.deaf {
		s.api.Silence()
	}
	s.start()
}

// start begins a process.
func (s *stage) start() {
	s.lives = append(s.lives, s.api.Begin(func(env controller.Env) *controller.Controller {
		return s.Build(env, s.drivers, func(name string) string { return s.options[name] })
	}))
	s.wait()
}

// object makes an object from text, "KIND WORD…".
func (s *stage) object(text string) runtime.Object {
	words := strings.Fields(text)
	kind, ok := s.Kinds[words[0]]
	if !ok {
		s.Fatalf("there is no kind %q", words[0])
	}
	return kind.make(s, words[1:])
}

func (s *stage) put(o runtime.Object) {
	if s.api == nil {
		s.objects = append(s.objects, o)
		return
	}
	s.turn.Lock()
	s.api.Put(o)
	s.remember(o)
	s.turn.Unlock()
	s.wait()
}

// look has a process reconcile keys, one after the other.
func (s *stage) look(life *kubetest.Process, keys []string) {
	for _, text := range keys {
		r, err := life.Reconcile(s.Context(), kubetest.KeyOf(text))
		switch {
		case err != nil:
			s.note("error: " + err.Error())
		case r.After > 0:
			s.note("again after " + r.After.String())
		}
		s.wait()
	}
}

func (s *stage) pass(text string) {
	pause, err := time.ParseDuration(text)
	if err != nil {
		s.Fatal(err)
	}
	kubetest.Pass(pause)
}

// busy has calls be in flight: their number, the call, the namespace, and the driver if it is another one.
func (s *stage) busy(words []string) {
	n, err := strconv.Atoi(words[0])
	if err != nil {
		s.Fatal(err)
	}
	lane := controller.Lane{Driver: s.Driver.Name, Call: words[1], Namespace: words[2]}
	if len(words) > 3 {
		lane.Driver = words[3]
	}
	for i := range n {
		k := controller.Key{Kind: "busy", Namespace: words[1], Name: strconv.Itoa(i)}
		s.lives[len(s.lives)-1].Enter(k, lane, func(volume.Because) {})
	}
}

// remove has somebody delete an object, or drop it whatever finalizers it has.
func (s *stage) remove(verb, resource, name string) {
	r := schema.GroupVersionResource{}
	for known := range s.known {
		if known.resource.Resource == resource {
			r = known.resource
		}
	}
	namespace, base, ok := strings.Cut(name, "/")
	if !ok {
		namespace, base = "", name
	}
	var err error
	s.turn.Lock()
	if verb == "drop" {
		err = s.api.Tracker().Delete(r, namespace, base)
	} else {
		s.setOthers()
		_, err = s.api.Invokes(clienttesting.NewDeleteAction(r, namespace, base), nil)
	}
	s.refresh(object{r, name})
	s.turn.Unlock()
	if err != nil {
		s.Fatal(err)
	}
	s.wait()
}

func (s *stage) setAmid(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.amid = is
}

// wait waits until nothing more happens by itself, unless a request waits for the line that is done.
func (s *stage) wait() {
	s.mu.Lock()
	amid := s.amid
	s.mu.Unlock()
	if !amid {
		synctest.Wait()
	}
}

// setOthers says that the next write is somebody else's.
func (s *stage) setOthers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.others = true
}

// takeOthers says whether the write that begins is somebody else's; the next one is the controller's again.
func (s *stage) takeOthers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := s.others
	s.others = false
	return is
}

// moveDriver has the driver leave or enter the set of drivers, or gives it a volume.
func (s *stage) moveDriver(words []string) {
	switch words[0] {
	case "gone":
		s.drivers.Remove(s.dialed)
	case "back":
		s.drivers.Put(s.dialed)
	case "made":
		_, err := s.driver.CreateVolume(s.Context(), &csipb.CreateVolumeRequest{
			Name: words[1], VolumeCapabilities: []*csipb.VolumeCapability{{}},
		})
		if err != nil {
			s.Fatal(err)
		}
		s.had = s.inventory()
	default:
		s.Fatalf("the driver cannot be %q", words[0])
	}
	s.wait()
}

// inventory returns the ids of the volumes that the driver has, and of the snapshots that it did not have at the start.
func (s *stage) inventory() string {
	out := "the driver has"
	for _, v := range s.driver.Volumes() {
		out += " " + v.ID
	}
	for _, id := range s.driver.Snapshots() {
		if !slices.Contains(s.Driver.Snapshots, id) {
			out += " " + id
		}
	}
	return out
}

// usual returns the request of which only differences are shown.
func (s *stage) usual(request proto.Message) proto.Message {
	name := request.ProtoReflect().Descriptor().FullName()
	at := slices.IndexFunc(s.Usual, func(m proto.Message) bool { return m.ProtoReflect().Descriptor().FullName() == name })
	if at < 0 {
		return nil
	}
	return s.Usual[at]
}
