package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/workshop/finding"
)

// verdict is the result of a check.
type verdict struct {
	level   finding.Level
	message string
}

func pass(format string, args ...any) verdict {
	return verdict{finding.Pass, fmt.Sprintf(format, args...)}
}

// warn is about what callers can handle, or what is not certainly a fault.
func warn(format string, args ...any) verdict {
	return verdict{finding.Warn, fmt.Sprintf(format, args...)}
}

func fail(format string, args ...any) verdict {
	return verdict{finding.Fail, fmt.Sprintf(format, args...)}
}

// skipped says that a check was not made because what it needs cannot be had.
func skipped(err error) verdict { return warn("it was not checked: %v", err) }

// unless returns that all is well, unless there is a problem.
func unless(problem, format string, args ...any) verdict {
	if problem != "" {
		return fail("%s", problem)
	}
	return pass(format, args...)
}

// oneOf returns the verdict about a list of problems.
func oneOf(problems []string, passed string) verdict {
	const shown = 3
	text := strings.Join(problems[:min(len(problems), shown)], "; ")
	if more := len(problems) - shown; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return unless(text, "%s", passed)
}

// check is one question to a driver.
type check struct {
	name string
	// needs says whether the driver promises what the check is about; nil if every driver does.
	needs func(*exam) bool
	run   func(*exam, context.Context) verdict
	// next is the advice if the verdict is not pass.
	next string
}

// verdictOf judges a volume.
type verdictOf = func(*exam, context.Context, *vol) verdict

// shared returns a check of the shared volume, which is brought to some states before.
func shared(check verdictOf, states ...state) func(*exam, context.Context) verdict {
	return func(x *exam, ctx context.Context) verdict {
		if err := x.shared.to(ctx, states...); err != nil {
			return skipped(err)
		}
		return check(x, ctx, x.shared)
	}
}

// own returns a check of a new volume, which is brought to a state before.
func own(check verdictOf, at state) func(*exam, context.Context) verdict {
	return func(x *exam, ctx context.Context) verdict {
		v := x.volume()
		if err := v.to(ctx, at); err != nil {
			return skipped(err)
		}
		return check(x, ctx, v)
	}
}

// conclude adds the finding of a check.
func (x *exam) conclude(c check, v verdict) {
	f := finding.Finding{Check: c.name, Level: v.level, Message: v.message}
	if v.level != finding.Pass {
		f.Next = c.next
	}
	x.add(f)
}

// checks returns all checks in the order in which they are made.
func checks() []check {
	return slices.Concat(identityChecks(), createChecks(), attachChecks(), nodeChecks(), useChecks(), growChecks(),
		listChecks(), healthChecks(), copyChecks(), getChecks(), metadataChecks(), groupChecks(), togetherChecks(),
		cutChecks(), killedChecks())
}

// What the driver promises.

func (x *exam) creates() bool { return x.promises().CreateDelete }

func (x *exam) attaches() bool { return x.creates() && x.promises().PublishUnpublish }

func (x *exam) stages() bool { return x.mounts() && x.node.d.Node.StageUnstage }

// mounts says that there are a controller and a node, so that volumes can be used.
func (x *exam) mounts() bool { return x.creates() && x.info.ID != "" }

func (x *exam) grows() bool {
	return x.mounts() && (x.promises().Expand || x.node.d.Node.Expand)
}

func (x *exam) canSnapshot() bool { return x.creates() && x.promises().Snapshot }

func (x *exam) canClone() bool { return x.creates() && x.promises().Clone }

func (x *exam) lists() bool { return x.promises().ListVolumes }

func (x *exam) startedByUs() bool {
	return x.mounts() && x.node.startedByUs() && x.controller.startedByUs()
}

// answered returns "" if an error has one of the codes, and otherwise what was answered instead.
func answered(call string, err error, want ...codes.Code) string {
	if slices.Contains(want, csi.Code(err)) {
		return ""
	}
	said := csi.Describe(err)
	if err == nil {
		said = "OK"
	}
	var names []string
	for _, c := range want {
		names = append(names, c.String())
	}
	return fmt.Sprintf("%s: %s, want %s", call, said, strings.Join(names, " or "))
}
