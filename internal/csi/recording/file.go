package recording

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"volplane.dev/volplane/internal/csi"
)

// Version is the version of the format. Additions do not change it.
const Version = 1

// kind identifies a recording in its first line.
const kind = "driver recording"

// Limits of a file that is read, in bytes and calls.
const (
	maxLine  = 1 << 20
	maxCalls = 100_000
)

// ErrFormat says that a file is not a readable recording.
var ErrFormat = errors.New("this is not a recording of a driver")

// Header is the first line of a recording.
type Header struct {
	// Volplane is always "driver recording".
	Volplane string `json:"volplane"`
	Version  int    `json:"version"`
	// Driver is the driver's name, and DriverVersion its version.
	Driver        string    `json:"driver"`
	DriverVersion string    `json:"driverVersion,omitempty"`
	RecordedAt    time.Time `json:"recordedAt"`
	// RecordedBy is the version of the program that has recorded.
	RecordedBy string `json:"recordedBy"`
}

// Recording is what was recorded of a driver.
type Recording struct {
	Header
	Calls []csi.Call
}

// Writer writes a recording.
type Writer struct{ out *json.Encoder }

// NewWriter writes the header.
func NewWriter(to io.Writer, h Header) (*Writer, error) {
	h.Volplane, h.Version = kind, Version
	w := &Writer{json.NewEncoder(to)}
	return w, w.out.Encode(h)
}

// Add writes a call.
func (w *Writer) Add(c csi.Call) error { return w.out.Encode(c) }

// Read reads a recording. An incomplete last line, which a killed process has left, is ignored.
func Read(from io.Reader) (Recording, error) {
	var out Recording
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxLine)
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &out.Header) != nil || out.Volplane != kind {
		return out, ErrFormat
	}
	if out.Version != Version {
		return out, fmt.Errorf("the recording has version %d of the format, this program reads version %d", out.Version,
			Version)
	}
	var broken error
	for n := 2; lines.Scan(); n++ {
		if broken != nil {
			return out, broken
		}
		var c csi.Call
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			broken = fmt.Errorf("line %d: %w: %w", n, ErrFormat, err)
			continue
		}
		if len(out.Calls) == maxCalls {
			return out, fmt.Errorf("the recording has more than %d calls", maxCalls)
		}
		out.Calls = append(out.Calls, c)
	}
	return out, lines.Err()
}
