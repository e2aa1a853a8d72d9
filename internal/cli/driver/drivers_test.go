package driver

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/hosting/supervise"
	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

const (
	hosted = "x.example.com"
	// soon is a time limit that always passes.
	soon = time.Millisecond
	// patience is a time limit that never passes.
	patience = time.Minute
)

// stand is a host with real files and a fake API.
type stand struct {
	*hostDrivers
	client   *fake.Clientset
	out, err *strings.Builder
	// custom are the custom resources that the API has, by path.
	custom customAPI
}

func newStand(t *testing.T, objects ...runtime.Object) stand {
	t.Helper()
	dir := t.TempDir()
	out, err := &strings.Builder{}, &strings.Builder{}
	client, custom := clientset.New(objects...), customAPI{}
	h := &hostDrivers{
		files: driverfile.Dir(filepath.Join(dir, "drivers.d")), state: filepath.Join(dir, "state"),
		plugins: filepath.Join(dir, "plugins"), client: withCustom{client, custom}, node: "n1", out: out, err: err,
	}
	if err := os.Mkdir(h.state, 0o700); err != nil {
		t.Fatal(err)
	}
	return stand{h, client, out, err, custom}
}

// record writes a supervisor's record of a process; the process itself is this one.
func (s stand) record(t *testing.T, name string, change func(*supervise.Record)) {
	t.Helper()
	boot, err := durable.Boot()
	if err != nil {
		t.Fatal(err)
	}
	r := supervise.Record{
		Format: 1, Name: name, State: supervise.Running, Since: time.Now().Add(-time.Hour), PID: 1, StartTime: 7, Boot: boot,
	}
	change(&r)
	if err := durable.WriteJSON(filepath.Join(s.state, name+".json"), r); err != nil {
		t.Fatal(err)
	}
}

func (s stand) log(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.state, name+".log"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// hostLoop stands for the host process: when a client begins to watch the CSINode, it has seen the
// driver's file, started its processes and registered the driver.
func (s stand) hostLoop(t *testing.T, name string) {
	t.Helper()
	s.client.PrependWatchReactor("csinodes", func(clienttesting.Action) (bool, watch.Interface, error) {
		if _, err := s.files.Get(name); err != nil {
			t.Errorf("it is awaited before it is written: %v", err)
		}
		w := watch.NewFakeWithChanSize(2, false)
		w.Modify(csiNode("n1", "another.example.com"))
		w.Modify(csiNode("n1", "another.example.com", name))
		return true, w, nil
	})
}

func csiNode(node string, drivers ...string) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}}
	for _, name := range drivers {
		n.Spec.Drivers = append(n.Spec.Drivers, storagev1.CSINodeDriver{Name: name, NodeID: node})
	}
	return n
}

// external returns a driver with one process that is run by another supervisor and serves a socket.
func external(socket string) driverfile.Driver {
	return driverfile.Driver{
		APIVersion: driverfile.APIVersion, Kind: driverfile.Kind, Name: hosted,
		Processes: []driverfile.Process{{
			Roles: []driverfile.Role{driverfile.RoleController, driverfile.RoleNode}, Socket: socket,
		}},
	}
}

// own returns a driver with one process that this host starts.
func own(program string) driverfile.Driver {
	d := external("")
	d.Processes[0].Exec = []string{program}
	return d
}

// pair returns a driver with two processes.
func pair(node, controller string) driverfile.Driver {
	d := own(node)
	d.Processes = append(d.Processes, driverfile.Process{
		Roles: []driverfile.Role{driverfile.RoleController}, Exec: []string{controller},
	})
	d.Processes[0].Roles = []driverfile.Role{driverfile.RoleNode}
	return d
}

// TestFlagsToDriver: what the flags of add say is what is in the file.
func TestFlagsToDriver(t *testing.T) {
	both := []driverfile.Role{driverfile.RoleController, driverfile.RoleNode}
	for name, c := range map[string]struct {
		flags addFlags
		want  []driverfile.Process
	}{
		"one process": {
			addFlags{
				plugin: processFlags{
					exec: "/bin/true --endpoint=$(CSI_ENDPOINT) 'a b'", env: []string{"A=b=c", "E="}, secrets: []string{"T=ns/s/k.x"},
				}, workingDir: "/srv",
			},
			[]driverfile.Process{{
				Roles: both, Exec: []string{"/bin/true", "--endpoint=$(CSI_ENDPOINT)", "a b"},
				Env: map[string]string{"A": "b=c", "E": ""}, WorkingDir: "/srv",
				EnvFromSecret: []driverfile.SecretVariable{{Name: "T", Secret: "ns/s", Key: "k.x"}},
			}},
		},
		"two processes": {
			addFlags{
				plugin:     processFlags{exec: "/bin/true", socket: "/run/x/node.sock"},
				controller: processFlags{exec: "/bin/false", env: []string{"A=b"}},
			},
			[]driverfile.Process{
				{Roles: both[1:], Exec: []string{"/bin/true"}, Socket: "/run/x/node.sock"},
				{Roles: both[:1], Exec: []string{"/bin/false"}, Env: map[string]string{"A": "b"}},
			},
		},
		"somebody else runs it": {
			addFlags{plugin: processFlags{socket: "/run/x.sock"}, workingDir: "/srv"},
			[]driverfile.Process{{Roles: both, Socket: "/run/x.sock"}},
		},
		"another program runs the controller": {
			addFlags{plugin: processFlags{exec: "/bin/true"}, controller: processFlags{socket: "/run/c"}},
			[]driverfile.Process{{Roles: both[1:], Exec: []string{"/bin/true"}}, {Roles: both[:1], Socket: "/run/c"}},
		},
	} {
		d, err := c.flags.driver(hosted)
		if err != nil || !cmp.Equal(d.Processes, c.want) || d.Name != hosted {
			t.Errorf("%s: %v\n%s", name, err, cmp.Diff(c.want, d.Processes))
		}
	}
}

// TestPlanAdd: the same again changes nothing, another one needs --replace, and what add does not
// say stays.
func TestPlanAdd(t *testing.T) {
	classy := func(d driverfile.Driver, class string) driverfile.Driver {
		d.Class = class
		return d
	}
	restarted := own("/bin/a")
	restarted.RestartedAt = "2026-01-01T00:00:00Z"
	for name, c := range map[string]struct {
		before  *driverfile.Driver
		d       driverfile.Driver
		replace bool
		deed    string
		class   string
		err     error
	}{
		"new":                 {nil, own("/bin/a"), false, deedCreated, "", nil},
		"new, with --replace": {nil, own("/bin/a"), true, deedCreated, "", nil},
		"the same":            {ptr.To(own("/bin/a")), own("/bin/a"), false, deedUnchanged, "", nil},
		"restarted since":     {&restarted, own("/bin/a"), false, deedUnchanged, "", nil},
		"another":             {ptr.To(own("/bin/a")), own("/bin/b"), false, "", "", errOther},
		"replaced":            {ptr.To(own("/bin/a")), own("/bin/b"), true, deedConfigured, "", nil},
		"without its class":   {ptr.To(classy(own("/bin/a"), "c")), own("/bin/a"), false, deedUnchanged, "c", nil},
		"a class to it":       {ptr.To(own("/bin/a")), classy(own("/bin/a"), "c"), false, deedConfigured, "c", nil},
		"a class to another":  {ptr.To(own("/bin/a")), classy(own("/bin/b"), "c"), false, "", "c", errOther},
		"another class":       {ptr.To(classy(own("/bin/a"), "c")), classy(own("/bin/a"), "e"), false, "", "e", errOther},
	} {
		deed, d, err := planAdd(c.before, c.d, c.replace, false)
		if deed != c.deed || d.Class != c.class || !errors.Is(err, c.err) {
			t.Errorf("%s: %s, class %q, %v", name, deed, d.Class, err)
		}
		if c.before == &restarted && d.RestartedAt != restarted.RestartedAt {
			t.Errorf("%s: it is started anew", name)
		}
	}
}

// TestChangedProcesses: only a process that is started differently has to be restarted.
func TestChangedProcesses(t *testing.T) {
	with := func(d driverfile.Driver, change func(*driverfile.Process)) driverfile.Driver {
		d.Processes = slices.Clone(d.Processes)
		change(&d.Processes[0])
		return d
	}
	one, two := own("/bin/a"), pair("/bin/a", "/bin/c")
	a, b := driverfile.SecretVariable{Name: "A"}, driverfile.SecretVariable{Name: "B"}
	for name, c := range map[string]struct {
		before *driverfile.Driver
		after  driverfile.Driver
		want   []string
	}{
		"new":             {nil, two, []string{hosted + "-node", hosted + "-controller"}},
		"the same":        {&two, pair("/bin/a", "/bin/c"), nil},
		"the node":        {&two, pair("/bin/b", "/bin/c"), []string{hosted + "-node"}},
		"the controller":  {&two, pair("/bin/a", "/bin/b"), []string{hosted + "-controller"}},
		"two for one":     {&one, two, []string{hosted + "-node", hosted + "-controller"}},
		"somebody else's": {&one, external("/run/x"), nil},
		"the environment": {
			&one, with(one, func(p *driverfile.Process) { p.Env = map[string]string{"A": "b"} }), []string{hosted},
		},
		"the socket":      {&one, with(one, func(p *driverfile.Process) { p.Socket = "/run/x" }), []string{hosted}},
		"the same socket": {&one, with(one, func(p *driverfile.Process) { p.Socket = "/p/" + hosted + "/csi.sock" }), nil},
		"the same place":  {&one, with(one, func(p *driverfile.Process) { p.WorkingDir = "/" }), nil},
		"the same in turn": {
			ptr.To(with(one, func(p *driverfile.Process) { p.EnvFromSecret = []driverfile.SecretVariable{a, b} })),
			with(one, func(p *driverfile.Process) { p.EnvFromSecret = []driverfile.SecretVariable{b, a} }), nil,
		},
	} {
		var got []string
		for _, p := range changedProcesses(c.before, c.after, "/p") {
			got = append(got, c.after.ProcessName(p))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestAdd: a driver is written, awaited by a watch, and gets its CSIDriver and its class from its
// capabilities; a repetition changes nothing.
func TestAdd(t *testing.T) {
	s := newStand(t, csiNode("n1", "another.example.com"))
	config := csitest.Full()
	config.Name = hosted
	d := external(csitest.Start(t, config).Socket)
	s.hostLoop(t, hosted)
	f := addFlags{wait: patience, class: classFlags{name: "fast", parameters: []string{"tier=1"}, isDefault: true}}
	d.Class = "fast"
	for range 2 {
		if err := s.add(t.Context(), d, f); err != nil {
			t.Fatal(err)
		}
	}
	want := "driver/x.example.com created\ndriver/x.example.com registered on node n1\ncsidriver/x.example.com created\n" +
		"storageclass/fast created\ndriver/x.example.com unchanged\ndriver/x.example.com registered on node n1\n"
	if s.out.String() != want {
		t.Errorf("%s\nwant\n%s", s.out, want)
	}
	if got, err := s.files.Get(hosted); err != nil || !cmp.Equal(got, d) {
		t.Errorf("%v\n%s", err, cmp.Diff(d, got))
	}
	o, err := s.client.StorageV1().CSIDrivers().Get(t.Context(), hosted, metav1.GetOptions{})
	if err != nil || !*o.Spec.AttachRequired {
		t.Errorf("%+v, %v", o, err)
	}
	c, err := s.client.StorageV1().StorageClasses().Get(t.Context(), "fast", metav1.GetOptions{})
	if err != nil || c.Provisioner != hosted || c.Parameters["tier"] != "1" {
		t.Errorf("%+v, %v", c, err)
	}
	polls := func(a clienttesting.Action) bool { return !a.Matches("get", "csinodes") }
	if gets := slices.DeleteFunc(s.client.Actions(), polls); len(gets) != 2 {
		t.Errorf("the CSINode was read %d times: it is to be watched", len(gets))
	}
}

// TestOtherClass: to give a driver the class of another, or other parameters, is refused before
// anything is written.
func TestOtherClass(t *testing.T) {
	class := func(name, driver string) *storagev1.StorageClass {
		return &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver, Parameters: map[string]string{"tier": "1"},
		}
	}
	s := newStand(t, csiNode("n1"), class("fast", hosted), class("slow", "other.example.com"))
	for want, class := range map[string]classFlags{
		"class fast exists with other parameters":                   {name: "fast"},
		"class fast exists with other parameters, ":                 {name: "fast", parameters: []string{"tier=2"}},
		"class slow exists and belongs to driver other.example.com": {name: "slow", parameters: []string{"tier=1"}},
		"--parameter: want KEY=VALUE":                               {name: "fast", parameters: []string{"tier"}},
	} {
		err := s.add(t.Context(), own("/bin/a"), addFlags{wait: patience, class: class})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
	if _, err := s.files.Get(hosted); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was written: %v", err)
	}
}

// TestClassOf: the capabilities of a driver decide what its class allows.
func TestClassOf(t *testing.T) {
	const early, late = storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer
	for name, c := range map[string]struct {
		said   csi.Driver
		expand bool
		mode   storagev1.VolumeBindingMode
	}{
		"nothing":             {csi.Driver{}, false, early},
		"the controller":      {csi.Driver{Controller: csi.ControllerCapabilities{Expand: true}}, true, early},
		"the node":            {csi.Driver{Node: csi.NodeCapabilities{Expand: true}}, true, early},
		"not from every node": {csi.Driver{Plugin: csi.PluginCapabilities{AccessibilityConstraints: true}}, false, late},
	} {
		o := (&wantedClass{name: "c"}).object(hosted, &c.said)
		if *o.AllowVolumeExpansion != c.expand || *o.VolumeBindingMode != c.mode || len(o.Annotations) > 0 {
			t.Errorf("%s: %+v", name, o)
		}
		o = (&wantedClass{name: "c", isDefault: true}).object(hosted, &c.said)
		if o.Annotations[volume.AnnDefaultClass] != "true" {
			t.Errorf("%s: it is not the default: %+v", name, o)
		}
	}
}

// TestReplace: a changed process must have been restarted before the driver counts as registered.
func TestReplace(t *testing.T) {
	s := newStand(t, csiNode("n1", hosted), &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: hosted}})
	if err := s.files.Put(own("/bin/a")); err != nil {
		t.Fatal(err)
	}
	s.record(t, hosted, func(*supervise.Record) {})
	if err := s.add(t.Context(), own("/bin/b"), addFlags{wait: soon}); !errors.Is(err, errOther) {
		t.Errorf("without --replace: %v", err)
	}
	if err := s.add(t.Context(), own("/bin/b"), addFlags{wait: soon, replace: true}); err == nil ||
		!strings.Contains(err.Error(), "not registered on node n1 after 1ms") {
		t.Errorf("the old process still runs: %v", err)
	}
	ended := make(chan error)
	go func() { ended <- s.add(t.Context(), own("/bin/c"), addFlags{wait: patience, replace: true}) }()
	s.await(t, func() bool { d, err := s.files.Get(hosted); return err == nil && d.Processes[0].Exec[0] == "/bin/c" })
	s.record(t, hosted, func(r *supervise.Record) { r.State = supervise.BackingOff })
	s.record(t, hosted, func(r *supervise.Record) { r.PID = 2 })
	if err := <-ended; err != nil {
		t.Error(err)
	}
	want := "driver/x.example.com configured\ndriver/x.example.com registered on node n1\n"
	if !strings.HasSuffix(s.out.String(), want) {
		t.Errorf("%s", s.out)
	}
}

// await returns when something is so in the directory of files.
func (s stand) await(t *testing.T, so func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := onChange(ctx, string(s.files), func() (bool, error) { return so(), nil }); err != nil {
		t.Fatal(err)
	}
}

// TestNotReady: the error has the state of each process, its last lines, and what to do.
func TestNotReady(t *testing.T) {
	s := newStand(t, csiNode("n1"))
	d := pair("/bin/a", "/bin/b")
	s.record(t, hosted+"-node", func(r *supervise.Record) {
		r.State, r.LastExit, r.LastLine, r.PID, r.StartTime = supervise.BackingOff, "exit status 2", "no license", 0, 0
	})
	s.log(t, hosted+"-node", "starting\nno \x1b[31mlicense\n")
	err := s.add(t.Context(), d, addFlags{wait: soon})
	for _, want := range []string{
		"driver x.example.com is not registered on node n1 after 1ms: ",
		"x.example.com-node is backing off (exit status 2: no license); x.example.com-controller is not started",
		"Last lines of x.example.com-node:\n  starting\n  no  [31mlicense\n",
		"No process starts the drivers of " + string(s.files) + ": does 'volplane up' or 'volplane node' run",
		"'volplane driver logs x.example.com'", "'volplane driver remove x.example.com'",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	if _, err := s.files.Get(hosted); err != nil {
		t.Errorf("the file stays: %v", err)
	}
}

// TestRefusal: the node agent's reason is in the error and the list.
func TestRefusal(t *testing.T) {
	event := func(name, driver, message string, at int64) *corev1.Event {
		cause := volume.Cause{Object: "csidriver/" + driver}.String()
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: name, Annotations: map[string]string{volume.AnnCause: cause},
			},
			InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "n1"},
			Reason:         string(volume.ReasonRegistrationRefused), Message: message, LastTimestamp: metav1.Unix(at, 0),
		}
	}
	elsewhere := event("elsewhere", hosted, "another node", 9)
	elsewhere.InvolvedObject.Name = "n2"
	s := newStand(t, csiNode("n1"), event("a", hosted, "at first", 1), elsewhere,
		event("b", hosted, "the driver at /r/x.example.com-reg.sock:\nno \x1bNodeGetInfo", 3),
		event("c", "y.x.example.com", "driver y.x.example.com: no, as x.example.com", 5),
		event("e", hosted, "second", 2))
	if got := s.refusal(t.Context(), hosted); got != "the driver at /r/x.example.com-reg.sock: no  NodeGetInfo" {
		t.Errorf("%q", got)
	}
	if got := s.refusal(t.Context(), "example.com"); got != "" {
		t.Errorf("of nobody: %q", got)
	}
	d := external(csitest.Start(t, csitest.Full()).Socket)
	if err := s.add(t.Context(), d, addFlags{wait: soon}); err == nil ||
		!strings.Contains(err.Error(), "x.example.com is not registered (the driver at /r/x.example.com-reg.sock: no") {
		t.Error(err)
	}
}

// TestOtherName: a driver that calls itself something else is never registered, and the error says so.
func TestOtherName(t *testing.T) {
	s := newStand(t, csiNode("n1"))
	err := s.add(t.Context(), external(csitest.Start(t, csitest.Full()).Socket), addFlags{wait: soon})
	if err == nil || !strings.Contains(err.Error(), "calls itself test.csi.example.com: add it with this name") {
		t.Error(err)
	}
}

// TestAddWithoutAPI: the file is written, and a class, which needs the API, is refused before.
func TestAddWithoutAPI(t *testing.T) {
	s := newStand(t)
	s.hostDrivers.client, s.absent = nil, errors.New("no API server answers")
	err := s.add(t.Context(), own("/bin/a"), addFlags{wait: patience, class: classFlags{name: "fast"}})
	if err == nil || !strings.Contains(err.Error(), "class fast cannot be created: no API server answers") {
		t.Error(err)
	}
	if _, err := s.files.Get(hosted); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was written: %v", err)
	}
	if err := s.add(t.Context(), own("/bin/a"), addFlags{wait: patience}); err != nil {
		t.Error(err)
	}
	if !strings.Contains(s.err.String(), "Nothing more was done: no API server answers") {
		t.Errorf("%s", s.err)
	}
}
