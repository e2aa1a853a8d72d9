package local

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's interface that reports where the data of a file are (linux/fiemap.h).
const (
	fiemap = 0xc020660b
	// fiemapSync has data that are not on the disk yet written first.
	fiemapSync = 0x1
	// These are the flags of an extent: it is the last one; it has no place of its own, or none that can be compared; it
	// has a place and nothing was written to it.
	extentLast      = 0x1
	extentUncertain = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400
	extentUnwritten = 0x800
	// extentsAtOnce is the number of extents per call.
	extentsAtOnce = 256
)

// kernelExtent is struct fiemap_extent.
type kernelExtent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

// kernelMap is struct fiemap.
type kernelMap struct {
	start, length              uint64
	flags, mapped, count, zero uint32
	extents                    [extentsAtOnce]kernelExtent
}

// These places are not on the disk: there are only zeros, or the location of the data is unknown.
const (
	nowhere   = -1
	uncertain = -2
)

// piece is a piece of a file whose data are in one place of the disk, or in none.
type piece struct{ from, to, place int64 }

// pieces returns the pieces of a file one by one, from an offset to its end.
type pieces func() (piece, error)

// at returns where the byte at an offset of a piece is.
func (p piece) at(offset int64) int64 {
	if p.place < 0 {
		return p.place
	}
	return p.place + offset - p.from
}

// piecesOf returns the pieces of an image from an offset to an end. Behind the image there are only zeros.
func piecesOf(f *os.File, from, to int64) pieces {
	var read []piece
	at, last := from, false
	return func() (piece, error) {
		for len(read) == 0 && !last {
			extents, err := extentsOf(f, at, to)
			if err != nil {
				return piece{}, err
			}
			if last = len(extents) == 0; last {
				break
			}
			for _, e := range extents {
				last = last || e.flags&extentLast != 0
				read = append(read, pieceOf(e))
			}
			if end := read[len(read)-1].to; end > at {
				at = end
			} else {
				last = true
			}
		}
		return nextPiece(&read, &from, to), nil
	}
}

// nextPiece returns the next piece, and removes the extents that end with it: the gap between two extents is a hole,
// and so is everything after the last one.
func nextPiece(read *[]piece, from *int64, to int64) piece {
	p := piece{*from, to, nowhere}
	if len(*read) > 0 {
		switch first := (*read)[0]; {
		case first.from > *from:
			p.to = min(first.from, to)
		default:
			p.to, p.place = min(first.to, to), first.at(*from)
		}
	}
	*from = p.to
	for len(*read) > 0 && (*read)[0].to <= *from {
		*read = (*read)[1:]
	}
	return p
}

func pieceOf(e kernelExtent) piece {
	p := piece{int64(e.logical), int64(e.logical + e.length), int64(e.physical)} //nolint:gosec // sizes of files
	switch {
	case e.flags&extentUnwritten != 0:
		p.place = nowhere
	case e.flags&extentUncertain != 0 || p.place < 0:
		p.place = uncertain
	}
	return p
}

// extentsOf reads some extents of a file, the first of which contains the byte at an offset or is after it.
func extentsOf(f *os.File, from, to int64) ([]kernelExtent, error) {
	if from >= to {
		return nil, nil
	}
	m := &kernelMap{flags: fiemapSync, count: extentsAtOnce}
	m.start, m.length = uint64(from), uint64(to-from) //nolint:gosec // sizes of files
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fiemap, uintptr(unsafe.Pointer(m)))
	if errno != 0 {
		return nil, fmt.Errorf("find the extents of %s: %w", f.Name(), errno)
	}
	return m.extents[:min(m.mapped, extentsAtOnce)], nil
}

// differ calls do for each piece from an offset to an end in which the data of two files may differ: those that are in
// one place, or are zeros in both, are the same.
func differ(from, to int64, a, b pieces, do func(at, length int64) error) error {
	var x, y piece
	for at := from; at < to; {
		var err error
		if x.to <= at {
			if x, err = a(); err != nil {
				return err
			}
		}
		if y.to <= at {
			if y, err = b(); err != nil {
				return err
			}
		}
		end := min(x.to, y.to, to)
		if place := x.at(at); place != y.at(at) || place == uncertain {
			if err := do(at, end-at); err != nil {
				return err
			}
		}
		at = end
	}
	return nil
}
