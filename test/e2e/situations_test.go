package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/test/internal/plane"
)

// situationsFile has what can go wrong with volumes, one paragraph each: what it argues,
// how it comes about, and what `volplane why` answers. $N is the namespace.
const situationsFile = "testdata/situations.txt"

// situation is a paragraph of the file.
type situation struct {
	argues string
	// steps are what users, administrators and the driver do, in this order.
	steps []string
	// ask is the object, headline the answer about it in one line.
	ask, headline string
}

// TestSituations plays each way in which a volume can be stuck at one running control
// plane, with a driver that does as it is told, and compares the whole headline.
// UPDATE_GOLDEN=1 writes the headlines that it gets.
func TestSituations(t *testing.T) {
	all := readSituations(t)
	w := newBadWorld(t)
	for _, step := range []string{"class bad-now", "class grows also='\"allowVolumeExpansion\": true'"} {
		if out, err := w.shell(t.Context(), t, "default", step); err != nil {
			t.Fatalf("%s: %v\n%s", step, err, out)
		}
	}
	for i := range all {
		s, name := &all[i], fmt.Sprintf("s%02d", i)
		t.Run(strings.ReplaceAll(s.argues, " ", "_"), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
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
		fmt.Fprintf(&b, "why %s\n> %s\n\n", s.ask, s.headline)
	}
	text := strings.TrimSuffix(b.String(), "\n")
	if err := os.WriteFile(situationsFile, []byte(text), 0o644); err != nil { //nolint:gosec // part of the source tree
		t.Fatal(err)
	}
}

// situation plays one paragraph.
func (w *badWorld) situation(ctx context.Context, t *testing.T, ns string, s *situation) {
	t.Helper()
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	if _, err := w.client.CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var told []string
	defer func() {
		for _, method := range told {
			w.driver.OnCall(method, nil)
		}
		w.shell(context.WithoutCancel(ctx), t, ns, "kubectl delete pods,pvc --all -n $N --wait=false")
	}()
	for _, step := range s.steps {
		if rest, is := strings.CutPrefix(step, "driver "); is {
			told = append(told, w.tell(t, rest))
			continue
		}
		if out, err := w.shell(ctx, t, ns, step); err != nil {
			t.Fatalf("%s: %v\n%s", step, err, out)
		}
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		settled, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_ = testkit.Until(settled, func() string { s.headline = w.headline(ctx, t, ns, s.ask); return "go on" })
		return
	}
	if err := testkit.Until(ctx, func() string {
		if got := w.headline(ctx, t, ns, s.ask); got != s.headline {
			return "the answer is\n" + got + "\nwant\n" + s.headline + "\n"
		}
		return ""
	}); err != nil {
		t.Error(err)
	}
}

// tell has the driver answer a method with a code and words, or "hang", from now on.
func (w *badWorld) tell(t *testing.T, words string) (method string) {
	t.Helper()
	part := strings.SplitN(words, " ", 3)
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

// shell runs a command line with the built programs, and with the functions of
// testdata/make.sh for objects.
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

// headline asks `volplane why`, and returns the answer in one line, without what is
// another one each time.
func (w *badWorld) headline(ctx context.Context, t *testing.T, ns, ask string) string {
	t.Helper()
	out, _ := w.shell(ctx, t, ns, "volplane why "+ask+" -n $N") // it ends with 2 when something waits
	answer, _, _ := strings.Cut(string(out), "\n\n")
	answer = strings.Join(strings.Fields(answer), " ")
	for _, r := range []struct{ like, by string }{
		{`\b` + ns + `\b`, "$$N"},
		{`\bpvc-[0-9a-f]{8}-[0-9a-f-]{27}\b`, "pvc-UID"},
		{`\b[0-9a-f]{8}-[0-9a-f-]{27}\b`, "UID"},
		{`\bcsi-[0-9a-f]{64}\b`, "csi-HASH"},
		{`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC`, "TIME"},
		{`has volumes of up to \S+ there`, "has volumes of up to SIZE there"},
		{regexp.QuoteMeta(w.plane.Dir), "DIR"},
	} {
		answer = regexp.MustCompile(r.like).ReplaceAllString(answer, r.by)
	}
	return answer
}
