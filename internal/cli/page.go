package cli

import (
	"io"
	"os"
	"strconv"

	"golang.org/x/term"
)

// page is an output that says how many columns its lines may have.
type page struct {
	io.Writer
	columns int
}

// Columns returns how many columns a line may have.
func (p page) Columns() int { return p.columns }

// asWideAs returns an output with the width that $COLUMNS says, or else that of the terminal that it is; any other
// output as it is.
func asWideAs(out io.Writer) io.Writer {
	file, ok := out.(*os.File)
	if !ok {
		return out
	}
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		return page{out, columns}
	}
	columns, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return out
	}
	return page{out, columns}
}
