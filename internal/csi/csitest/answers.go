package csitest

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/volume"
)

// EveryAnswer shows how a decision judges every result of a call: each gRPC code and an unknown one, an answer that
// breaks the specification, and an error of this program. There is one line for each verdict, with its answers; the
// most frequent verdict applies to all others.
func EveryAnswer(judge func(volume.Answer) string) string {
	var order []string
	about := map[string][]string{}
	add := func(name string, err error) {
		verdict := judge(csi.AnswerOf(err))
		if about[verdict] == nil {
			order = append(order, verdict)
		}
		about[verdict] = append(about[verdict], name)
	}
	add("OK", nil)
	for code := codes.Canceled; code <= codes.Unauthenticated+1; code++ {
		add(code.String(), status.Error(code, "broken"))
	}
	add("(breaks the specification)", misshapen{})
	add("(not called)", errors.New("not called"))
	most := slices.MaxFunc(order, func(x, y string) int { return cmp.Compare(len(about[x]), len(about[y])) })
	var lines []string
	for _, verdict := range order {
		if verdict != most {
			lines = append(lines, verdict+": "+strings.Join(about[verdict], " "))
		}
	}
	return strings.Join(append(lines, most+": whatever else"), "\n")
}

// misshapen is an answer that this side refuses.
type misshapen struct{}

// Error is what the refusal says.
func (misshapen) Error() string { return csi.ErrAnswer.Error() }

// Unwrap returns the reason.
func (misshapen) Unwrap() error { return csi.ErrAnswer }

// GRPCStatus is the status that callers see who ask for a code.
func (m misshapen) GRPCStatus() *status.Status { return status.New(codes.Unknown, m.Error()) }
