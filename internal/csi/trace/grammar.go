package trace

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
)

// Limits of faults.
const (
	maxText   = 4 << 10
	maxFaults = 32
	// MaxFor is the longest time for which faults can be planted.
	MaxFor = 24 * time.Hour
)

// Effects of faults other than a code.
const (
	effectHang = "hang"
	effectLost = "lost"
)

// everyMethod means all methods but those of the identity service.
const everyMethod = "*"

// Fault is what happens to calls of a method.
type Fault struct {
	// Method is the name of a method without its service, or *.
	Method string
	// Code is the code with which the calls fail.
	Code codes.Code
	// Hang means that the driver is not called and the caller gets no answer for Wait, or until it gives up.
	Hang bool
	Wait time.Duration
	// Lost says that the driver is called, and its answer is lost.
	Lost bool
	// Times is how many calls are meant, Percent which share of them; 0 means all.
	Times   int
	Percent float64
}

// ParseFaults reads faults: METHOD:EFFECT [HOW OFTEN], separated by commas.
func ParseFaults(text string) ([]Fault, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("faults of %d bytes, %d are allowed", len(text), maxText)
	}
	var out []Fault
	for part := range strings.SplitSeq(text, ",") {
		f, err := parseFault(part)
		if err != nil {
			return nil, fmt.Errorf("fault %q: %w", strings.TrimSpace(part), err)
		}
		out = append(out, f)
	}
	if len(out) > maxFaults {
		return nil, fmt.Errorf("%d faults, %d are allowed", len(out), maxFaults)
	}
	return out, nil
}

func parseFault(text string) (Fault, error) {
	method, rest, ok := strings.Cut(text, ":")
	f := Fault{Method: strings.TrimSpace(method)}
	words := strings.Fields(rest)
	if !ok || len(words) == 0 {
		return f, fmt.Errorf("want METHOD:EFFECT, such as CreateVolume:Unavailable")
	}
	if !isMethod(f.Method) {
		return f, fmt.Errorf("CSI does not have the method %.60q: use a name such as NodeStageVolume, or * for all but "+
			"the identity service",
			f.Method)
	}
	words, err := f.parseEffect(words)
	if err != nil {
		return f, err
	}
	switch len(words) {
	case 0:
		return f, nil
	case 1:
		return f, f.parseOften(words[0])
	}
	return f, fmt.Errorf("%.60q is not a fault: want METHOD:EFFECT once, Nx or N%%", strings.Join(words[1:], " "))
}

func isMethod(name string) bool {
	return name == everyMethod || slices.ContainsFunc(csi.Methods(), func(m string) bool { return path.Base(m) == name })
}

// parseEffect reads the effect, and returns the words after it.
func (f *Fault) parseEffect(words []string) ([]string, error) {
	effect, rest := words[0], words[1:]
	switch effect {
	case effectLost:
		f.Lost, f.Code = true, codes.Unavailable
		return rest, nil
	case effectHang:
		f.Hang, f.Code = true, codes.DeadlineExceeded
		if len(rest) == 0 {
			return rest, nil
		}
		wait, err := time.ParseDuration(rest[0])
		if err != nil {
			return rest, nil //nolint:nilerr // it is not a duration but a probability or a count
		}
		if wait <= 0 || wait > MaxFor {
			return rest, fmt.Errorf("%s is not a valid time to hang: want at most %s", rest[0], MaxFor)
		}
		f.Wait = wait
		return rest[1:], nil
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		if strings.EqualFold(code.String(), strings.ReplaceAll(effect, "_", "")) {
			f.Code = code
			return rest, nil
		}
	}
	return rest, fmt.Errorf("%.60q is not an effect: use a gRPC code such as Unavailable, hang, hang 30s or lost", effect)
}

// parseOften reads once, Nx or N%.
func (f *Fault) parseOften(word string) error {
	if word == "once" {
		f.Times = 1
		return nil
	}
	if number, ok := strings.CutSuffix(word, "x"); ok {
		if n, err := strconv.Atoi(number); err == nil && n > 0 {
			f.Times = n
			return nil
		}
	}
	if number, ok := strings.CutSuffix(word, "%"); ok {
		if p, err := strconv.ParseFloat(number, 64); err == nil && p > 0 && p <= 100 {
			f.Percent = p
			return nil
		}
	}
	return fmt.Errorf("%.60q does not say how often: use once, 3x or 20%%", word)
}

// String returns the fault as ParseFaults reads it.
func (f Fault) String() string {
	out := f.Method + ":" + f.Code.String()
	switch {
	case f.Lost:
		out = f.Method + ":" + effectLost
	case f.Hang && f.Wait > 0:
		out = f.Method + ":" + effectHang + " " + f.Wait.String()
	case f.Hang:
		out = f.Method + ":" + effectHang
	}
	switch {
	case f.Times == 1:
		out += " once"
	case f.Times > 0:
		out += fmt.Sprintf(" %dx", f.Times)
	case f.Percent > 0:
		out += " " + strconv.FormatFloat(f.Percent, 'g', -1, 64) + "%"
	}
	return out
}

// meets says whether the fault applies to a method, given by its full name.
func (f Fault) meets(method string) bool {
	service, name := path.Split(method)
	return f.Method == name || f.Method == everyMethod && service != "/csi.v1.Identity/"
}
