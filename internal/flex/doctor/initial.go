package doctor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/host"
)

// Limits of init's duration: hosts call it at their start and after every change.
const (
	quickInit = 100 * time.Millisecond
	slowInit  = 2 * time.Second
	// fewInits is the number of calls after the first, manyInits that if init seems slow.
	fewInits, manyInits = 2, 9
)

// file checks the executable's file.
func (x *exam) file() {
	info, err := os.Stat(x.path)
	if err != nil {
		x.fail("file", "", "%v", err)
		x.stop(err)
		return
	}
	data, err := os.ReadFile(x.path)
	if err != nil {
		x.stop(err)
		return
	}
	sum := sha256.Sum256(data)
	x.report.Hash = hex.EncodeToString(sum[:8])
	var wrong []string
	if why := host.OwnedBy(x.path, info).Others(); why != "" {
		wrong = append(wrong, "it "+why)
	}
	if info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		wrong = append(wrong, "it has the setuid or setgid bit")
	}
	if filepath.Base(x.path) != x.name.Driver {
		wrong = append(wrong, fmt.Sprintf("it is called %s, a host looks for %s", filepath.Base(x.path), x.name.Driver))
	}
	x.answer(question{
		"file", decide.Warn, "install it with volplane flex install, which puts that right",
		"root's file, with the name that a host looks for",
	}, strings.Join(wrong, "; "))
}

// init calls init and says whether the examination can continue.
func (x *exam) init(ctx context.Context) bool {
	first := x.call(ctx, decide.OpInit)
	if !first.ok() {
		x.fail("init", x.byHand("init"), "%s", first.why())
		return false
	}
	x.pass("init", "it answers Success")
	x.report.Capabilities = &first.answer.Capabilities
	x.capabilities(first)
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
		"init-repeatable", decide.Fail, "let init change nothing and answer the same each time",
		"it may be called at any time",
	}, again)
	f := decide.Finding{Check: "init-time", Level: decide.Pass}
	f.Message = fmt.Sprintf("init takes %v, %v are expected: hosts call it after every change",
		took.Round(time.Millisecond), quickInit)
	if took > quickInit {
		f.Level, f.Next = decide.Warn, "do nothing in init but answer"
	}
	if took > slowInit {
		f.Level = decide.Fail
	}
	x.add(f)
	return !x.stopped()
}

// sayCapabilities is the advice about init's answer.
const sayCapabilities = `answer "capabilities":{"attach":false} if the driver does not attach, {"attach":true} if it does`

// capabilities checks the capabilities in init's answer, as they were printed.
func (x *exam) capabilities(c call) {
	const name = "init-capabilities"
	objects := objects(c.stdout)
	if len(objects) == 0 {
		objects = append(objects, nil)
	}
	answer := objects[len(objects)-1]
	raw, found := answer["capabilities"]
	if !found {
		for key := range answer {
			if strings.EqualFold(key, "capabilities") {
				x.warn(name, "", "the key is %q, not \"capabilities\"", key)
				return
			}
		}
		x.warn(name, sayCapabilities,
			"init names no capabilities: a host takes its defaults, among them that the driver attaches")
		return
	}
	if bytes.Equal(bytes.TrimSpace(raw), []byte("null")) {
		x.fail(name, sayCapabilities, "\"capabilities\" is null, which ends Kubernetes' kubelet")
		return
	}
	var said map[string]json.RawMessage
	if err := json.Unmarshal(raw, &said); err != nil {
		x.fail(name, sayCapabilities, "\"capabilities\" is not an object")
		return
	}
	known := []string{"attach", "selinuxRelabel", "supportsMetrics", "fsGroup", "requiresFSResize"}
	var odd []string
	for key := range said {
		if !slices.Contains(known, key) {
			odd = append(odd, fmt.Sprintf("%q", key))
		}
	}
	slices.Sort(odd)
	reason := ""
	if len(odd) > 0 {
		reason = "hosts do not know the capability " + strings.Join(odd, ", ")
	}
	if _, found := said["attach"]; !found {
		reason = "\"attach\" is not said, and true by default"
	}
	x.answer(question{
		name, decide.Warn, sayCapabilities, fmt.Sprintf("an object; attach is %v", x.report.Capabilities.Attach),
	}, reason)
}

// objects returns all JSON objects in an output.
func objects(b []byte) (all []map[string]json.RawMessage) {
	for {
		start := bytes.IndexByte(b, '{')
		if start < 0 {
			return all
		}
		b = b[start:]
		var o map[string]json.RawMessage
		d := json.NewDecoder(bytes.NewReader(b))
		if d.Decode(&o) != nil {
			b = b[1:]
			continue
		}
		all, b = append(all, o), b[d.InputOffset():]
	}
}

// noOperation is an operation that does not exist.
const noOperation decide.Operation = "volplanedoctor"

// sayUnsupported is the advice about operations that a driver does not know.
const sayUnsupported = `print {"status":"Not supported"} and exit with 1`

// unknown calls an operation that no driver knows, because later hosts may have new ones.
func (x *exam) unknown(ctx context.Context) {
	const name = "unknown-operation"
	c := x.call(ctx, noOperation, filepath.Join(x.root, "nothing"))
	silent := len(bytes.TrimSpace(c.stdout)) == 0 && len(bytes.TrimSpace(c.stderr)) == 0
	switch {
	case c.ok():
		x.fail(name, sayUnsupported, "an operation that does not exist succeeds")
	case silent:
		x.warn(name, sayUnsupported, "an operation that does not exist gets no answer")
	case !c.unsupported():
		x.warn(name, sayUnsupported, "an operation that does not exist should be \"Not supported\": %s", c.why())
	default:
		x.pass(name, "an operation that does not exist is Not supported")
	}
}

// others calls operations that a driver without attach leaves to the host (F-033).
func (x *exam) others(ctx context.Context, v vol) {
	var wrong []string
	for _, c := range []call{
		x.call(ctx, decide.OpGetVolumeName, x.json(decide.OpGetVolumeName, v)),
		x.call(ctx, decide.OpIsAttached, x.json(decide.OpIsAttached, v), x.node),
		x.call(ctx, decide.OpWaitForAttach, "", x.json(decide.OpWaitForAttach, v)),
	} {
		if !c.unsupported() {
			wrong = append(wrong, c.why())
		}
	}
	x.answer(question{"other-operations", decide.Warn, sayUnsupported, "what belongs to attaching is Not supported"},
		strings.Join(wrong, "; "))
}
