package resize

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// ended is a call that ended with the error, as a resizer tells of it.
func ended(err error) Answer {
	return Answer{Answer: csi.AnswerOf(err)}
}

func no(code codes.Code) Answer { return ended(status.Error(code, "no")) }

// TestCodes: after which codes a size is never to be, and after which the call is made again.
func TestCodes(t *testing.T) {
	ten := resource.MustParse("10Gi")
	f := grows(Started(claim("10Gi", "5Gi"), ten, metav1.Time{}), pv("5Gi"))
	var out strings.Builder
	for code := codes.Canceled; code <= codes.Unauthenticated+1; code++ {
		v, word := After(f, ten, no(code), metav1.Time{}), "never"
		if v.Repeat {
			word = "repeat"
		}
		if v.Repeat == IsInfeasible(v.Claim) || !v.Warn || v.Volume != nil {
			t.Errorf("%s: %+v", code, v)
		}
		fmt.Fprintf(&out, "%-18s %s\n", code, word)
	}
	golden.Equal(t, "testdata/codes.txt", out.String())
}

func TestAnswers(t *testing.T) {
	ten, now := resource.MustParse("10Gi"), metav1.Unix(7, 0)
	begun := Started(claim("10Gi", "5Gi"), ten, metav1.Unix(3, 0))
	done := Answer{Answer: volume.Answer{Outcome: volume.Done}}
	gone := ended(errors.New("driver d.example.com has gone")) //nolint:err113 // an error that is no gRPC status
	var out strings.Builder
	for _, c := range []struct {
		argues string
		facts  Facts
		answer Answer
	}{
		{"it has what was asked for", grows(begun, pv("5Gi")), Answer{Answer: done.Answer, Bytes: 10 << 30}},
		{"the driver does not say how much it has", grows(begun, pv("5Gi")), done},
		{"it has more", grows(begun, pv("5Gi")), Answer{Answer: done.Answer, Bytes: 11 << 30}},
		{"it has less", grows(begun, pv("5Gi")), Answer{Answer: done.Answer, Bytes: 9 << 30}},
		{
			"it has less, and the node goes on", grows(begun, pv("5Gi")),
			Answer{Answer: done.Answer, Bytes: 1, NodeExpands: true},
		},
		{"the node goes on", grows(begun, pv("5Gi")), Answer{Answer: done.Answer, NodeExpands: true}},
		{"it tells an older size", grows(begun, marked(pv("8Gi"))), Answer{Answer: done.Answer, NodeExpands: true}},
		{"the volume's size was written already", grows(begun, pv("10Gi")), Answer{Answer: done.Answer, NodeExpands: true}},
		{"a size that can never be", grows(begun, pv("5Gi")), no(codes.OutOfRange)},
		{"a final no that may end", grows(begun, pv("5Gi")), no(codes.ResourceExhausted)},
		{"it may have grown", grows(begun, pv("5Gi")), no(codes.DeadlineExceeded)},
		{"the claim says so already", grows(Refused(begun, "Internal: no", now), pv("5Gi")), no(codes.Internal)},
		{"a driver that was not asked", grows(begun, pv("5Gi")), gone},
	} {
		v := After(c.facts, ten, c.answer, now)
		fmt.Fprintf(&out, "# %s\nvolume has %s, the claim wants %s\nanswer %s code=%q bytes=%d node=%v\n----\n", c.argues,
			c.facts.Volume.Spec.Capacity.Storage(), &ten, c.answer.Outcome, c.answer.Code, c.answer.Bytes, c.answer.NodeExpands)
		fmt.Fprintf(&out, "%s %s: %s -> %s\nrepeat=%v\n", map[bool]string{true: "Warning", false: "Normal"}[v.Warn],
			v.Because.Reason, v.Because.Message, v.Because.Next, v.Repeat)
		if v.Volume != nil {
			out.WriteString("volume\n" + golden.Change(t, c.facts.Volume, v.Volume))
		}
		if v.Claim != nil {
			out.WriteString("claim\n" + golden.Change(t, c.facts.Claim, v.Claim))
		}
		out.WriteString("\n")
	}
	golden.Equal(t, "testdata/answers.txt", out.String())
}
