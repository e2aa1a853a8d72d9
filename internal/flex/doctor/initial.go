package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/check"
	"volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/flex/host"
	"volplane.dev/volplane/internal/workshop/finding"
)

// Limits of init's duration: hosts call it at their start and after every change.
const (
	quickInit = 100 * time.Millisecond
	// initLimit is the time limit of init in volplane's host.
	initLimit = 10 * time.Second
	// fewInits is the number of calls after the first, manyInits that if init seems slow.
	fewInits, manyInits = 2, 9
)

// file checks the executable's file, and says whether it can be started.
func (x *exam) file() bool {
	startable := true
	for _, f := range check.File(x.Path) {
		if f.Level != finding.Pass {
			x.add(f)
		}
		startable = startable && f.Level != finding.Fail
	}
	info, err := os.Stat(x.Path)
	if err != nil {
		return false
	}
	if x.report.Hash, err = driver.Hash(x.Path); err != nil {
		return false
	}
	var wrong []string
	if why := host.OwnedBy(x.Path, info).Others(); why != "" {
		wrong = append(wrong, "it "+why)
	}
	if filepath.Base(x.Path) != x.Name.Driver {
		wrong = append(wrong, fmt.Sprintf("it is called %s, a host looks for %s", filepath.Base(x.Path), x.Name.Driver))
	}
	switch {
	case len(wrong) > 0:
		x.add(finding.Finding{
			Check: "file", Level: finding.Warn, Message: strings.Join(wrong, "; "),
			Next: finding.Administrator.Should("install it with volplane flex install, which puts that right"),
		})
	case !slices.ContainsFunc(x.report.Findings, func(f finding.Finding) bool { return f.Check == "file" }):
		x.pass("file", "root's file, with the name that a host looks for")
	}
	return startable
}

// init calls init and says whether the examination can continue.
func (x *exam) init(ctx context.Context) bool {
	first := x.call(ctx, decide.OpInit)
	if !first.ok() {
		x.fail("init", both(), x.byHand("init"), "%s", first.why())
		return false
	}
	x.pass("init", "it answers Success")
	x.report.Capabilities = &first.answer.Capabilities
	x.add(decide.JudgeCapabilities(first.Call))
	took, again := first.took, ""
	// The host may be busy, which is not the driver's fault: if init seems slow, it is called more
	// often.
	for try := 0; try < fewInits || took > quickInit && try < manyInits && !x.stopped(); try++ {
		c := x.call(ctx, decide.OpInit)
		took = min(took, c.took)
		switch {
		case !c.ok():
			again = "called again, " + c.why()
		case c.answer.Capabilities != first.answer.Capabilities:
			again = "called again, it names other capabilities"
		}
	}
	x.answer(question{
		"init-repeatable", both(), "let init change nothing and answer the same each time",
		"it may be called at any time",
	}, again)
	f := finding.Finding{Check: "init-time", Level: finding.Pass}
	f.Message = fmt.Sprintf("init takes %v, %v are expected: hosts call it after every change",
		took.Round(time.Millisecond), quickInit)
	if took > quickInit {
		f.Level, f.Next = finding.Warn, finding.Author.Should("do nothing in init but answer")
	}
	x.add(f)
	return !x.stopped()
}

// unknown calls an operation that no driver knows, because later hosts may have new ones.
func (x *exam) unknown(ctx context.Context) {
	c := x.call(ctx, check.UnknownOperation, check.Nowhere)
	x.unjudged()
	if c.overdue {
		return
	}
	x.add(decide.JudgeUnknown(c.Call))
}
