package flex

import (
	"fmt"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// mounts reads "PATH TYPE SOURCE" lines, separated by ";"; a line's number is
// its ID, unless it begins with one.
func mounts(s string) []Mount {
	var out []Mount
	for i, line := range strings.Split(s, ";") {
		var m Mount
		if n, _ := fmt.Sscan(line, &m.Path, &m.Type, &m.Source); n < 3 {
			continue
		}
		m.ID, m.Device = i+1, "7:"+fmt.Sprint(i)
		out = append(out, m)
	}
	return out
}

// verdictCases are mounts before and after a call, and what the driver said.
func verdictCases() []struct {
	name, before, after string
	a                   Answer
	err                 error
} {
	const one, two = "/v/d ext4 /dev/loop0", "/v/d ext4 /dev/loop0;/v/d tmpfs t"
	success, refused, failed := Answer{Status: Success}, Answer{Status: NotSupported},
		Answer{Status: Failure, Message: "no server"}
	return []struct {
		name, before, after string
		a                   Answer
		err                 error
	}{
		{"success and mounted", "", one, success, nil},
		{"success and nothing mounted", "", "", success, nil},
		{"success and mounted twice", "", two, success, nil},
		{"success and mounted below only", "", "/v/d/sub tmpfs t", success, nil},
		{"success and mounted elsewhere only", "", "/v/dd tmpfs t;/v tmpfs t;/other tmpfs t", success, nil},
		{"success and was mounted", one, one, success, nil},
		{"success and no more mounted", one, "", success, nil},
		{"success and one of two", two, one, success, nil},
		{"failure and nothing mounted", "", "", failed, nil},
		{"failure and mounted", "", one, failed, nil},
		{"failure and mounted twice, and below", "", two + ";/v/d/a tmpfs t;/v/d/a/b tmpfs t", failed, nil},
		{"failure and mounted over what was mounted below", "", "/v/d/a tmpfs t;" + one, failed, nil},
		{"failure and mounted elsewhere", "", "/v/dd tmpfs t;/other tmpfs t", failed, nil},
		{"failure on top of something", one, two, failed, nil},
		{"failure with everything as it was", one, one, failed, nil},
		{"not supported", "", "", refused, nil},
		{"not supported, but mounted", "", one, refused, nil},
		{"not supported, as it was", one, one, refused, nil},
		{"no answer and mounted", "", one, Answer{}, ErrNoAnswer},
		{"no answer, as it was", one, one, Answer{}, ErrNoAnswer},
		{"no answer and no more mounted", one, "", Answer{}, ErrNoAnswer},
		{"too long and mounted", "", one, Answer{}, ErrTimeLimit},
		{"too long, as it was", one, one, Answer{}, ErrTimeLimit},
		{"too long and nothing mounted", "", "", Answer{}, ErrTimeLimit},
		{"killed and no more mounted", one, "", Answer{}, ErrKilled},
		{"failure and no more mounted", one, "", failed, nil},
		{"failure and one of two left", two, one, failed, nil},
		{"failure without a word", one, one, Answer{Status: Failure}, nil},
	}
}

// TestVerdicts: what mount and unmount came to (H1 to H4). Every case is given
// to both.
func TestVerdicts(t *testing.T) {
	var b strings.Builder
	for _, c := range verdictCases() {
		before, after := mounts(c.before), mounts(c.after)
		fmt.Fprintf(&b, "%s:\n", c.name)
		fmt.Fprintf(&b, "\tmount: %s\n", shownVerdict(AfterMount("/v/d", before, after, c.a, c.err)))
		fmt.Fprintf(&b, "\tunmount: %s\n", shownVerdict(AfterUnmount("/v/d", before, after, c.a, c.err)))
	}
	golden.Equal(t, "testdata/verdicts.txt", b.String())
}

func shownVerdict(v Verdict) string {
	s := v.Outcome.String()
	if v.Unsupported {
		s += ", unsupported"
	}
	if len(v.Undo) > 0 {
		s += ", undo " + strings.Join(v.Undo, " ")
	}
	return s + fmt.Sprintf(", %s: %s", v.Because.Reason, v.Because.Message)
}

// TestVerdictsTouchNothingForeign: what is to be unmounted is at or below the
// directory, and was mounted by the call or remains of the volume.
func TestVerdictsTouchNothingForeign(t *testing.T) {
	for _, c := range verdictCases() {
		before, after := mounts(c.before), mounts(c.after)
		m, u := AfterMount("/v/d", before, after, c.a, c.err), AfterUnmount("/v/d", before, after, c.a, c.err)
		for _, v := range []Verdict{m, u} {
			for _, path := range v.Undo {
				if path != "/v/d" && !strings.HasPrefix(path, "/v/d/") {
					t.Errorf("%s: %s is foreign", c.name, path)
				}
			}
		}
		if len(m.Undo) > max(0, len(after)-len(before)) {
			t.Errorf("%s: unmounts %v, more than the call mounted", c.name, m.Undo)
		}
		if m.Outcome == volume.Done && len(m.Undo) > 0 {
			t.Errorf("%s: done, and undone", c.name)
		}
		if u.Outcome == volume.Done && len(u.Undo) != len(below("/v/d", after)) {
			t.Errorf("%s: done, with something left", c.name)
		}
	}
}
