package situations

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/planetest"
)

// situationsFile has the situations in which a volume is stuck, one in each paragraph: a title, what users,
// administrators and the driver do, and the answer of `volplane why`: the headline and, after "+", what else the
// answer has. $N is the namespace.
const situationsFile = "testdata/situations.txt"

// situation is a paragraph of the file.
type situation struct {
	argues string
	// steps are the actions of users, administrators and the driver, in order.
	steps []string
	// ask is the object, and headline the answer about it in one line.
	ask, headline string
	// also is what the answer must contain as well; empty means nothing.
	also string
}

// TestSituations plays each way in which a volume can be stuck at one running control plane, with a driver
// that the test controls, and compares the whole headline. UPDATE_GOLDEN=1 writes the headlines.
func TestSituations(t *testing.T) {
	t.Parallel()
	all := readSituations(t)
	w := newBadWorld(t)
	for _, step := range []string{"class bad-now", "class grows also='\"allowVolumeExpansion\": true'"} {
		if out, err := w.shell(t.Context(), t, "default", step); err != nil {
			t.Fatalf("%s: %v\n%s", step, err, out)
		}
	}
	for i := range all {
		w.early(t, nameOf(i), &all[i])
	}
	for i := range all {
		s, name := &all[i], nameOf(i)
		t.Run(strings.ReplaceAll(s.argues, " ", "_"), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), planetest.Patience)
			defer cancel()
			w.situation(ctx, t, name, s)
		})
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		writeSituations(t, all)
	}
}

func readSituations(t *testing.T) []situation {
	t.Helper()
	text, err := os.ReadFile(situationsFile)
	if err != nil {
		t.Fatal(err)
	}
	var all []situation
	for paragraph := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		var s situation
		for line := range strings.Lines(paragraph) {
			word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch word {
			case "#":
				s.argues = rest
			case "why":
				s.ask = rest
			case ">":
				s.headline = rest
			case "+":
				s.also = rest
			default:
				s.steps = append(s.steps, strings.TrimSpace(line))
			}
		}
		all = append(all, s)
	}
	return all
}

func writeSituations(t *testing.T, all []situation) {
	t.Helper()
	var b strings.Builder
	for _, s := range all {
		fmt.Fprintf(&b, "# %s\n", s.argues)
		for _, step := range s.steps {
			fmt.Fprintf(&b, "%s\n", step)
		}
		fmt.Fprintf(&b, "why %s\n> %s\n", s.ask, s.headline)
		if s.also != "" {
			fmt.Fprintf(&b, "+ %s\n", s.also)
		}
		b.WriteString("\n")
	}
	text := strings.TrimSuffix(b.String(), "\n")
	if err := os.WriteFile(situationsFile, []byte(text), 0o644); err != nil { //nolint:gosec // part of the source tree
		t.Fatal(err)
	}
}

func nameOf(i int) string { return fmt.Sprintf("s%02d", i) }

// early plays the steps of a paragraph that begin with that word, before all paragraphs: their consequences are only
// reported after a while.
func (w *badWorld) early(t *testing.T, ns string, s *situation) {
	t.Helper()
	if !s.early() {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), planetest.Patience)
	defer cancel()
	w.space(ctx, t, ns)
	for _, step := range s.steps {
		if rest, is := strings.CutPrefix(step, earlyStep); is {
			if out, err := w.shell(ctx, t, ns, rest); err != nil {
				t.Fatalf("%s: %v\n%s", step, err, out)
			}
		}
	}
}

const earlyStep = "early "

// early says whether some of the steps are played before all paragraphs.
func (s *situation) early() bool {
	return slices.ContainsFunc(s.steps, func(step string) bool { return strings.HasPrefix(step, earlyStep) })
}

func (w *badWorld) space(ctx context.Context, t *testing.T, ns string) {
	t.Helper()
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	if _, err := w.client.CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// situation plays one paragraph of the file.
func (w *badWorld) situation(ctx context.Context, t *testing.T, ns string, s *situation) {
	t.Helper()
	w.space(ctx, t, ns)
	var told []string
	defer func() {
		for _, method := range told {
			w.driver.OnCall(method, nil)
		}
		w.shell(context.WithoutCancel(ctx), t, ns, "kubectl delete pods,pvc --all -n $N --wait=false")
	}()
	for _, step := range s.steps {
		if strings.HasPrefix(step, earlyStep) {
			continue
		}
		if rest, is := strings.CutPrefix(step, "driver "); is {
			told = append(told, w.tell(t, rest))
			continue
		}
		if out, err := w.shell(ctx, t, ns, step); err != nil {
			t.Fatalf("%s: %v\n%s", step, err, out)
		}
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		wait := 5 * time.Second
		if s.early() {
			wait = 90 * time.Second
		}
		settled, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		_ = testkit.Until(settled, func() string { s.headline, _ = w.answer(ctx, t, ns, s.ask); return "go on" })
		return
	}
	if err := testkit.Until(ctx, func() string {
		switch got, rest := w.answer(ctx, t, ns, s.ask); {
		case got != s.headline:
			return "the answer is\n" + got + "\nwant\n" + s.headline + "\n"
		case !strings.Contains(rest, s.also):
			return "the answer has\n" + rest + "\nand not\n" + s.also + "\n"
		}
		return ""
	}); err != nil {
		t.Error(err)
	}
	w.agree(ctx, t, ns)
}

// agree fails unless the control plane, which answers from memory, gives the same explanations for everything that
// waits in a namespace as an evaluation of all objects read.
func (w *badWorld) agree(ctx context.Context, t *testing.T, ns string) {
	t.Helper()
	if err := testkit.Until(ctx, func() string {
		told, _ := w.shell(ctx, t, ns, "volplane why -n $N")
		read, _ := w.shell(ctx, t, ns, "volplane snapshot-state -n $N - | volplane why -n $N --from -")
		if got, want := w.same(ns, string(told)), w.same(ns, string(read)); got != want {
			return "the control plane says\n" + got + "\nand the objects say\n" + want + "\n"
		}
		return ""
	}); err != nil {
		t.Error(err)
	}
}

// tell makes the driver answer a method with a code and words, or "hang", from now on. "ListVolumes on NODE" makes it
// report that all volumes are attached to that node, and it is called immediately because it registers again.
func (w *badWorld) tell(t *testing.T, words string) (method string) {
	t.Helper()
	part := strings.SplitN(words, " ", 3)
	if part[1] == "on" {
		w.driver.OnCall(part[0], func(int, any) csitest.Action { return csitest.Action{Answer: w.listed(part[2])} })
		w.driver.Restart()
		return part[0]
	}
	action := csitest.Action{Hang: part[1] == "hang"}
	if !action.Hang {
		var code codes.Code
		if err := code.UnmarshalJSON([]byte(`"` + part[1] + `"`)); err != nil {
			t.Fatal(err)
		}
		action.Err = status.Error(code, part[2])
	}
	w.driver.OnCall(part[0], func(int, any) csitest.Action { return action })
	return part[0]
}

// listed has all volumes of the driver on one node.
func (w *badWorld) listed(node string) *csipb.ListVolumesResponse {
	r := &csipb.ListVolumesResponse{}
	for _, v := range w.driver.Volumes() {
		r.Entries = append(r.Entries, &csipb.ListVolumesResponse_Entry{
			Volume: &csipb.Volume{VolumeId: v.ID},
			Status: &csipb.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{node}},
		})
	}
	return r
}

// shell runs a command line with the built programs, and with the functions of testdata/make.sh that create
// objects.
func (w *badWorld) shell(ctx context.Context, t *testing.T, ns, line string) ([]byte, error) {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	line = ". " + filepath.Join(dir, "testdata", "make.sh") + "\n" + line
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", line)
	cmd.Env = append(os.Environ(), "N="+ns, "KUBECONFIG="+w.plane.Kubeconfig(),
		"PATH="+filepath.Dir(plane.Bin("kubectl"))+":"+os.Getenv("PATH"))
	return cmd.CombinedOutput()
}

// answer runs `volplane why`, and returns the headline and the rest on one line each, without names and times
// that differ between runs.
func (w *badWorld) answer(ctx context.Context, t *testing.T, ns, ask string) (headline, rest string) {
	t.Helper()
	out, _ := w.shell(ctx, t, ns, "volplane why "+ask+" -n $N") // it ends with 2 when something waits
	headline, rest, _ = strings.Cut(string(out), "\n\n")
	return w.same(ns, headline), w.same(ns, rest)
}

// same returns a text on one line, without names and times that differ between runs.
func (w *badWorld) same(ns, text string) string {
	answer := strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		return unicode.IsSpace(r) || strings.ContainsRune("│├└─", r)
	}), " ")
	for _, r := range []struct{ like, by string }{
		{`\b` + ns + `\b`, "$$N"},
		{`\bpvc-[0-9a-f]{8}-[0-9a-f-]{27}\b`, "pvc-UID"},
		{`\b[0-9a-f]{8}-[0-9a-f-]{27}\b`, "UID"},
		{`\bcsi-[0-9a-f]{64}\b`, "csi-HASH"},
		{`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC`, "TIME"},
		{`process \d+`, "process PID"},
		{`\(\w+ ago\)`, "(AGE ago)"},
		{`\battempt \d+\b`, "attempt N"},
		{`has volumes of up to \S+ there`, "has volumes of up to SIZE there"},
		{regexp.QuoteMeta(w.plane.Dir), "DIR"},
	} {
		answer = regexp.MustCompile(r.like).ReplaceAllString(answer, r.by)
	}
	return answer
}
