// Calls a URL, and waits after each 429 as docs/clients.md says.
//
// Usage: retry URL REQUESTS [TRIES], or retry --delays.
package main

import (
	"encoding/json"
	"io"
	"log"
	"math"
	"math/rand"
	"net/http"
	"os"
	"strconv"
	"time"
)

const (
	triesMax = 6
	waitMax  = 600 // seconds; a client gives up rather than come before Retry-After
)

var client = http.Client{Timeout: 30 * time.Second}

func getWithRetries(url string, triesMax int) (status int, waits []float64, err error) {
	waits = []float64{}
	for {
		status, retryAfter, err := get(url)
		wait := delay(len(waits), retryAfter, rand.Float64())
		if err != nil || status != 429 || len(waits)+1 >= triesMax || wait > waitMax {
			return status, waits, err
		}
		time.Sleep(time.Duration(wait * float64(time.Second)))
		waits = append(waits, wait)
	}
}

// Seconds before a retry, of which the first is number 0; random is from 0 to 1.
func delay(retry int, retryAfter, random float64) float64 {
	backoff := math.Min(30, math.Exp2(float64(retry))) * (0.8 + 0.4*random)
	return math.Max(retryAfter, backoff)
}

func get(url string) (status int, retryAfter float64, err error) {
	response, err := client.Get(url)
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	seconds, _ := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 32)
	return response.StatusCode, float64(seconds), err
}

func main() {
	rand.Seed(time.Now().UnixNano()) // Go before 1.20 has the same numbers in each run
	out := json.NewEncoder(os.Stdout)
	if len(os.Args) == 2 && os.Args[1] == "--delays" {
		delays := make([]float64, 7)
		for retry := range delays {
			delays[retry] = delay(retry, 0, 0.5)
		}
		out.Encode(delays)
		return
	}
	if len(os.Args) < 3 {
		log.Fatal("usage: retry URL REQUESTS [TRIES]")
	}
	requests, tries := number(os.Args[2]), triesMax
	if len(os.Args) > 3 {
		tries = number(os.Args[3])
	}
	for ; requests > 0; requests-- {
		status, waits, err := getWithRetries(os.Args[1], tries)
		if err != nil {
			log.Fatal(err)
		}
		for n, wait := range waits {
			waits[n] = math.Round(wait*100) / 100
		}
		out.Encode(struct {
			Status int       `json:"status"`
			Tries  int       `json:"tries"`
			Waits  []float64 `json:"waits"`
		}{status, len(waits) + 1, waits})
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		log.Fatal(err)
	}
	return value
}
